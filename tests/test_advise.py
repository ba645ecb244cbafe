"""The command end to end on the table target: what it leaves, and what the run that follows makes of it."""

import json
import sqlite3
from dataclasses import replace
from math import isnan
from pathlib import Path

import pandas as pd
import pytest
from fixtures.small_parts import composed_values

from specdec import advise, run
from specdec.commands import cli
from specdec.drafters.ngram import Ngram
from specdec.errors import UsageError
from specdec.verifiers.speculative_sampling import SpeculativeSampling

TINY = ("+debug=tiny", "measurement.max_new_tokens=40", "measurement.bootstrap=60")
SAMPLED = "target.law=[[0.4,0.35,0.25],[0.1,0.3,0.6],[0.55,0.2,0.25]]"


@pytest.fixture
def ran(in_process, made_database, tmp_path, undrawn_pictures):
    """`ran(module, ...)` runs a command to its end; it gives the folder of its output."""

    def call(module, *arguments: str) -> Path:
        before = set(tmp_path.glob("outputs/*/*"))
        ended = in_process(module, *arguments)
        assert ended.code == 0, ended.error
        (folder,) = set(tmp_path.glob("outputs/*/*")) - before
        return folder

    return call


@pytest.fixture
def refused(monkeypatch, tmp_path):
    """`refused("+drafter=ngram", ..., says=words)`: one sentence with these words, and no advice."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "output_dir", lambda: tmp_path)

    def check(*arguments: str, says: str) -> None:
        with pytest.raises(UsageError) as raised:
            advise.task(composed_values(*arguments, *TINY, root="advise", whole=True))
        assert says in str(raised.value) and "\n" not in str(raised.value)
        assert not (tmp_path / "advice").exists()

    return check


@pytest.fixture
def replay_by(monkeypatch):
    """`replay_by("calling")` changes how n-gram drafts can be replayed along a text; None: they cannot."""
    return lambda way: monkeypatch.setattr(Ngram, "capabilities", replace(Ngram.capabilities, replay=way))


def given(folder):
    return json.loads((folder / "advice.json").read_text())


@pytest.mark.parametrize(
    "shape",
    [
        ("structure=chain",),
        pytest.param(("structure=tree", "structure.nodes=6", "structure.depth=4"), marks=pytest.mark.slow),
    ],
)
def test_a_run_that_follows_finds_its_advice(ran, tmp_path, shape):
    folder = ran(advise, "+drafter=ngram", *shape, *TINY, "tracking.uri=http://me:secret@host")
    assert "secret" not in (folder / "config.yaml").read_text(), "no password is kept"
    advice = given(folder)
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        assert database.execute("select count(*) from runs").fetchone() == (0,)
    assert (tmp_path / "advice" / f"{advice['key']}.json").read_text() == (folder / "advice.json").read_text()
    assert [item["gamma"] for item in advice["predictions"]] == [1, 2, 4]
    best = max(advice["predictions"], key=lambda item: item["speedup"]["estimate"])
    assert advice["best_gamma"] == best["gamma"]
    assert advice["verdict"].endswith(".") and "\n" not in advice["verdict"]
    assert advice["serving"]["verdict"].startswith("No recommendation: no engine is known")  # the target is a table

    rounds = pd.read_parquet(folder / "rounds.parquet")
    assert set(rounds["method"]) == {"baseline"} and (rounds["offered"] == 0).all()  # it never speculated

    folder = ran(run, "+drafter=ngram", *shape, *TINY, "tracking.enabled=false")
    summary = json.loads((folder / "summary.json").read_text())
    predicted = {item["gamma"]: item for item in advice["predictions"]}
    assert advice["alpha"] == pytest.approx(summary["metrics"]["alpha.text"], rel=1e-9)
    loops = f"{summary['metrics']['repetition/share']:.0%} of the prompts have an output that falls into a loop; "
    assert advice["verdict"].startswith(loops), "the greedy text of a table does nothing else"
    assert summary["metrics"]["speedup.predicted"] == predicted[4]["speedup"]["estimate"]
    curve = summary["curves"]["curve/speedup/predicted"]
    assert curve == {str(gamma): item["speedup"]["estimate"] for gamma, item in predicted.items()}
    for arm in summary["arms"]:  # in float64 the replay is exact
        expected = predicted[arm["gamma"]]["tokens_per_round"]["estimate"]
        assert arm["tokens_per_round"] == pytest.approx(expected, rel=1e-9)
    assert any("specdec.advise predicted a speedup of" in note for note in summary["notes"])


@pytest.mark.slow
def test_recorded_text_of_a_run_gives_the_same_rounds_and_key(ran):
    decoded = ran(run, "+drafter=ngram", *TINY, "tracking.enabled=false")
    text = f"advice.text={decoded / 'generations.jsonl'}"
    from_file = ran(advise, "+drafter=ngram", *TINY, text)
    plain = ran(advise, "+drafter=ngram", *TINY)
    one, other = given(from_file), given(plain)
    assert one["key"] == other["key"] and one["tokens"] == other["tokens"] and one["prompts"] == other["prompts"]
    assert one["source"] != other["source"] == "baseline"
    for ours, theirs in zip(one["predictions"], other["predictions"], strict=True):
        assert ours["tokens_per_round"] == theirs["tokens_per_round"] and ours["offered"] == theirs["offered"]
        assert ours["speedup"]["estimate"] > 0
    assert pd.read_parquet(from_file / "rounds.parquet")["prompt"].nunique() == 1  # decoded for the time alone


@pytest.mark.slow
def test_text_of_other_prompts_is_advice_of_its_own(ran, tmp_path):
    lines = [{"prompt_token_ids": [0, 1], "generated_token_ids": [0, 1, 2, 0, 1, 2, 0, 1]}]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, lines)))
    advice = given(ran(advise, "+drafter=ngram", *TINY, "advice.text=texts.jsonl"))
    assert advice["prompts"] == 1 and advice["tokens"] == 8
    assert any("no run will find this advice" in note for note in advice["notes"])
    assert all(isnan(item["speedup"]["low"]) for item in advice["predictions"])


@pytest.mark.slow
def test_drafts_that_take_time_do_not_pay(ran):
    """A drafter of 5 ms a token beside a target that takes microseconds: the verdict names it."""
    prompts = "prompts.tokens=[[0,1,2,0,1,2],[1,2,0,1,2,0],[2,0,1,2,0,1],[2,1,0,2,1,0],[0,0,1,2,0,0]]"
    advice = given(ran(advise, "+drafter=oracle", *TINY, "drafter.step_ms=5", prompts))
    # Whether free drafts would pay is a matter of microseconds on a table; that drafting is what to mend is not.
    assert advice["blame"] == "draft cost" and "do not speculate: the best" in advice["verdict"]
    for item in advice["predictions"]:
        # Of the time of a round, drafting is nearly all.
        cost = item["cost"]
        assert item["speedup"]["estimate"] < 0.5 and cost["draft"] > 0.9 * (cost["verify"] + cost["draft"])
    one, four = advice["predictions"][0]["cost"]["draft"], advice["predictions"][2]["cost"]["draft"]
    assert one < four  # 4 times, but for what other processes take


@pytest.mark.slow
def test_damaged_advice_is_named(ran, in_process, tmp_path):
    folder = ran(advise, "+drafter=ngram", *TINY)
    path = tmp_path / "advice" / f"{given(folder)['key']}.json"
    path.write_text("{}")
    ended = in_process(run, "+drafter=ngram", *TINY, "tracking.enabled=false")
    assert ended.code == 2 and str(path) in ended.error and ended.error.count("\n") == 1


HEURISTIC = ("drafter@drafter.of=ngram", "drafter.rule=heuristic")
BAD = [
    (("+drafter=ngram", "advice.text=bad.jsonl"), "bad.jsonl:1: token id 3"),
    (
        ("+drafter=adaptive", *HEURISTIC, "sampling.temperature=1", SAMPLED, "advice.text=recorded.jsonl"),
        "sampling=greedy",
    ),
    (("+drafter=ngram", "structure=rows", "sampling.temperature=1", SAMPLED), "only chains can be advised on"),
    (
        ("+drafter=ngram", "verifier=blockwise", "verifier.minimum_block=2"),
        "it accepts other tokens than those of the target's own text",
    ),
    (("+drafter=ngram", "target=replay", "target.path=recorded.jsonl"), "target=replay: its time is simulated"),
]


@pytest.mark.parametrize("arguments, says", BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_input_is_one_sentence(refused, tmp_path, arguments, says):
    (tmp_path / "bad.jsonl").write_text('{"prompt_token_ids": [0], "generated_token_ids": [3]}')
    (tmp_path / "recorded.jsonl").write_text('{"prompt_token_ids": [0], "generated_token_ids": [1, 2, 0, 1]}')
    refused(*arguments, says=says)


@pytest.mark.parametrize(
    ("structure", "says"), [("tree", "cannot be replayed along a text"), ("chain", "raise prompts.limit")]
)
def test_without_a_replay_trees_and_too_few_rounds_are_refused(refused, replay_by, structure, says):
    replay_by(None)
    refused("+drafter=ngram", f"structure={structure}", says=says)


@pytest.mark.slow
def test_chains_without_a_replay_are_decoded_at_one_gamma_and_predicted_at_the_others(ran, replay_by):
    """A model fitted to the rounds at gamma 4 foretells what replay reads off other texts of the same law."""
    settings = ("+drafter=ngram", *TINY, "measurement.max_new_tokens=300", "sampling=temperature", "structure=chain")
    replayed = ran(advise, *settings)
    replay_by(None)
    speculated = ran(advise, *settings)
    one, other = given(replayed), given(speculated)
    assert other["replay"] == "speculation" and any("decoded at gamma 4" in note for note in other["notes"])
    for ours, theirs in zip(one["predictions"], other["predictions"], strict=True):
        tokens = theirs["tokens_per_round"]
        assert tokens["estimate"] == pytest.approx(ours["tokens_per_round"]["estimate"], rel=0.06)
        assert tokens["low"] < tokens["estimate"] < tokens["high"]
        assert sum(theirs["offered"].values()) == pytest.approx(1)


def test_a_drafter_that_needs_the_targets_calls_gets_them(ran, replay_by):
    """The n-grams need none: called, the target gives the rounds that its text alone gives, and says what it took."""
    alone = ran(advise, "+drafter=ngram", *TINY)
    replay_by("calling")
    called = ran(advise, "+drafter=ngram", *TINY)
    one, other = given(alone), given(called)
    assert (one["replay"], other["replay"], other["alpha"]) == ("start", "calling", None)
    calls = 0.0
    for ours, theirs in zip(one["predictions"], other["predictions"], strict=True):
        assert ours["tokens_per_round"] == theirs["tokens_per_round"] and ours["offered"] == theirs["offered"]
        calls += other["tokens"] / theirs["tokens_per_round"]["estimate"]
    assert any(f"took {round(calls)} calls of the target" in note for note in other["notes"])


def test_rules_that_the_replay_does_not_know_are_refused_when_sampling(refused, replay_by, monkeypatch):
    replay_by("position")
    assert SpeculativeSampling.capabilities.token_by_token
    as_a_whole = replace(SpeculativeSampling.capabilities, token_by_token=False)
    monkeypatch.setattr(SpeculativeSampling, "capabilities", as_a_whole)
    refused("+drafter=ngram", "sampling.temperature=1", says="verifier=speculative_sampling")
