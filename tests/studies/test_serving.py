"""The study of a server end to end: on a tiny model, on a law, on a run, on recorded lengths; and what it refuses."""

import json
from types import SimpleNamespace

import pandas as pd
import pytest

from specdec.analysis.studies.serving import ADAPTIVE, NONE, closed_check
from specdec.errors import UsageError
from specdec.serving.server import ServedText
from specdec.studies.serving import arrival_times, cost_of_server, texts_of_run
from specdec.text.streams import Stream, write_streams

SMALL = ("study.requests=40", "study.warmup=10", "study.replications=2", "study.loads=[0.3,2.0]", "study.gammas=[1,3]",
         "study.slots=4", "study.contexts=[8,16]", "study.calls=1")  # fmt: skip
LAW = ("study.law={alpha: 0.7, prompt_tokens: 20, output_tokens: 12}", "drafter=none", "study.cost=h100_llama31_8b")


@pytest.mark.slow
def test_a_server_of_a_tiny_model_from_its_own_texts(study, tiny_target):
    found, tables = study("serving", "drafter=ngram", *tiny_target[:-1], "prompts.limit=2", *SMALL)
    policies = [NONE, "gamma 1", "gamma 3", ADAPTIVE]
    served, steps = tables["served"], tables["served_steps"]
    assert list(dict.fromkeys(served["policy"])) == policies
    assert set(served.groupby(["policy", "load", "replication"]).size()) == {40}
    assert set(served["number"]) == set(range(10, 50)) and (served["finished"] > served["first"] - 1e-12).all()
    # All policies of a replication serve the same requests at the same times.
    asked = served.pivot(index=["load", "replication", "number"], columns="policy", values="arrived")
    assert (asked.sub(asked[NONE], axis=0).abs() < 1e-9).all().all()
    assert set(steps.loc[steps["policy"] == NONE, "gamma"]) == {0} and steps["batch"].max() == 4
    calls = tables["call_times"]
    assert set(calls["k"]) == {1, 2, 4} and set(calls["w"]) == {0, 1, 3} and (calls["evaluation"] == "rows").all()
    texts = found.sections[0].text
    assert all(section.title.startswith("Simulated") for section in found.sections)
    assert all(name.startswith("serving/simulated.") for name in found.metrics)
    for section in found.sections:
        assert all(caption.startswith("Simulated") for caption, _ in section.tables)
        assert all(figure.get_suptitle().startswith("Simulated") for _, figure in section.figures)
    assert texts[0].startswith("Simulated: ") and found.metrics["serving/simulated.little_error"] < 1e-12
    # Twice what the server can finish: said, and no waiting times.
    assert "Overloaded" in found.sections[1].text[1] and "none from 2 on" in found.sections[1].text[1]
    assert "serving/simulated.none.latency_p99.2" not in found.metrics
    assert found.metrics["serving/simulated.none.latency_p99.0.3"] > 0


@pytest.mark.slow
def test_a_law_and_a_published_cost_need_no_model(study):
    found, tables = study("serving", *LAW, *SMALL)
    (line,) = tables["recording"].to_dict("records")
    assert "alpha 0.7" in line["texts"] and "2601.11580" in line["cost"] and line["draft_growth"] == 0
    steps = tables["step_times"].set_index(["batch", "gamma"])["seconds"]
    cached = line["prompt_tokens"] - 1 + 0.0
    fixed, token, kv, rest = 0.00588590713, 2.10103129e-5, 3.92645679e-8, 0.00120683946
    assert steps[4, 0] == pytest.approx(fixed + 4 * token + rest + 4 * kv * cached, rel=1e-3)
    assert steps[4, 3] - steps[4, 0] == pytest.approx(12 * token + 0.002136103179603 + 3 * 8.41429603e-7, rel=2e-3)
    rounds = tables["step_times"].groupby("gamma")["tokens_per_round"].first()
    assert rounds[0] == 1 and rounds[3] == pytest.approx((1 - 0.7**4) / 0.3, rel=0.12)
    full = tables["capacity"].groupby("policy")[["tokens", "seconds"]].sum()
    assert full.loc["gamma 3", "tokens"] / full.loc["gamma 3", "seconds"] < 4 * rounds[3] / steps[4, 3]


@pytest.mark.slow
def test_recorded_lengths_and_arrival_times(study, tmp_path):
    lengths = {"acc_eagle": [3, 2, 1, 1, 2, 1] * 3}
    path, times = tmp_path / "texts.jsonl", tmp_path / "arrivals.json"
    texts = [Stream(name, "", (1, place), (1, 2, 3) * 6, lengths) for place, name in enumerate("ab")]
    write_streams(path, texts)
    times.write_text(json.dumps([0, 1, 1, 5, 6]))
    replay = ("target=replay", f"target.path={path}", "prompts=recorded", "drafter=recorded", "target.vocab_size=16")
    _, tables = study("serving", *replay, f"study.arrival_times={times}", *SMALL)
    (line,) = tables["recording"].to_dict("records")
    assert line["arrivals"] == "arrivals at recorded times" and line["output_tokens"] == 18
    assert "2601.11580" in line["cost"]
    rounds = tables["step_times"].groupby("gamma")["tokens_per_round"].first()
    assert rounds[3] == 18 / ServedText(2, tuple(lengths["acc_eagle"])).rounds(3)
    one = tables["served"].query("policy == 'none' and load == 0.3 and replication == 0")["arrived"]
    gaps = one.diff().dropna().round(9)
    assert (gaps.iloc[:8] / gaps[gaps > 0].min()).round(6).tolist() == pytest.approx([1, 1, 0, 4, 1, 1, 0, 4])


def rounds_of(*lines):
    columns = ["method", "gamma", "repeat", "prompt", "context", "committed", "rejected"]
    table = pd.DataFrame(lines, columns=columns)
    return table.assign(round=range(len(table)), offered=table["gamma"], offered_nodes=table["gamma"])


def test_lengths_of_a_run_are_read_off_its_rounds(tmp_path):
    """A text of 6: at gamma 2 rounds of 3, 1, 2, at gamma 1 of 2, 1, 1, 2; gamma 1 tells the bonus of the first."""
    lines = [
        ("ngram", 2, 0, "p", 5, 3, False), ("ngram", 2, 0, "p", 8, 1, True), ("ngram", 2, 0, "p", 9, 2, True),
        ("ngram", 1, 0, "p", 5, 2, False), ("ngram", 1, 0, "p", 7, 1, True), ("ngram", 1, 0, "p", 8, 1, True),
        ("ngram", 1, 0, "p", 9, 2, False), ("baseline", 0, 0, "p", 5, 1, False),
    ]  # fmt: skip
    (tmp_path / "config.yaml").write_text("{}")
    rounds_of(*lines).to_parquet(tmp_path / "rounds.parquet")
    found = texts_of_run(tmp_path, None, 2)
    assert found.texts == (ServedText(5, (3, 2, 1, 1, 2, 1)),)
    # Not known: the first two, whose draft was accepted whole, and where they end.
    assert found.unknown == pytest.approx(2 / 6)
    assert [found.texts[0].rounds(gamma) for gamma in (1, 2)] == [4, 3]
    for method, deepest, words in (("medusa", 2, "study.method=medusa"), (None, 4, "drafted 2 tokens at most")):
        with pytest.raises(UsageError, match=words):
            texts_of_run(tmp_path, method, deepest)
    rounds_of(*lines).assign(offered_nodes=9).to_parquet(tmp_path / "rounds.parquet")
    with pytest.raises(UsageError, match="drafts branch"):
        texts_of_run(tmp_path, None, 2)


@pytest.mark.parametrize(
    ("evaluations", "words"),
    [
        (("packed",), "target 'other' takes no batches that could be timed; give"),
        (("packed", "rows"), "study.cost=null: target SimpleNamespace decodes one sequence at a time; give the"),
    ],
)
def test_a_target_that_takes_no_batches_needs_a_cost(evaluations, words):
    can = SimpleNamespace(evaluations=evaluations, structures=frozenset({"chain", "rows"}))
    parts = SimpleNamespace(target=SimpleNamespace(capabilities=can), chosen=SimpleNamespace(drafter=None))
    bench = SimpleNamespace(parts=parts, plan=SimpleNamespace(target_values={"name": "other"}))
    with pytest.raises(UsageError, match=words):
        cost_of_server(bench, SimpleNamespace(cost=None, run=None))


@pytest.mark.parametrize("content", ["", "1", "[2, 1]", "[1, 1]", "a b", '[1, "x"]', "[1, NaN]", "{}"])
def test_bad_arrival_times_are_said(tmp_path, content):
    path = tmp_path / "times"
    path.write_text(content)
    with pytest.raises(UsageError, match="^Bad value study.arrival_times=[^\n]*$"):
        arrival_times(path)


def measured_batches(folder):
    """The output folder of study `batching`, by hand: 1.6 tokens in steps of 10 ms + 1 ms a sequence and token."""
    cells = pd.MultiIndex.from_product([(1, 4), (1, 3), range(5)], names=["batch", "gamma", "repeat"])
    cells = cells.to_frame(index=False).assign(drafter="ngram")
    batch, gamma, noise = cells["batch"], cells["gamma"], 1 + 0.01 * (cells["repeat"] - 2)
    seconds, plain = (50 * (0.01 + 1e-3 * batch * (each + 1)) for each in (gamma, 0))
    live = cells.assign(steps=50, tokens=1.6 * 50 * batch * noise, seconds=seconds, draft_s=0.1 * seconds)
    live = live.assign(verify_s=0.8 * seconds, baseline_steps=50, baseline_seconds=plain)
    folder.mkdir()
    (folder / "config.yaml").write_text("{}")
    live.assign(baseline_tokens=50 * batch * noise).to_parquet(folder / "batching.parquet")
    cells.assign(seconds=1e-3 * gamma * (1 + (batch - 1) / 4)).to_parquet(folder / "drafts.parquet")
    cost = {
        **dict.fromkeys(("token_s", "weights_s", "cached_s", "key_s", "lookup_s", "lookup_share", "overhead_s"), 0.0),
        "name": "batching", "source": "by hand", "fixed_s": 0.01, "row_s": 1e-3, "tile": 1, "overlap": False,
        "draft": {"fixed_s": 0.0, "step_s": 0.0, "cached_s": 0.0},
    }  # fmt: skip
    (folder / "batching.json").write_text(json.dumps({"cost": cost}))
    return folder


@pytest.mark.slow
def test_measured_batches_give_the_steps_and_are_compared_with(study, tmp_path):
    folder = measured_batches(tmp_path / "batching")
    found, tables = study("serving", *LAW, *SMALL, f"study.batching={folder}", "study.method=ngram", "study.cost=null")
    (line,) = tables["recording"].to_dict("records")
    assert line["cost"] == f"steps measured by {folder}" and line["draft_growth"] == pytest.approx(1 / 4)
    steps = tables["step_times"].set_index(["batch", "gamma"])["seconds"]
    # Batches between the measured ones are interpolated.
    assert [steps[2, 0], steps[4, 3], steps[1, 1]] == pytest.approx([0.012, 0.026, 0.012])
    closed = tables["closed"].set_index(["by", "batch", "gamma"])
    for (_, batch, gamma), line in closed.loc[["measured"]].iterrows():
        assert line["seconds"] / line["steps"] == pytest.approx(0.01 + 1e-3 * batch * (gamma + 1))
    # The cost model: the call, 1 ms for each drafted token (a quarter of it for each further sequence), the overhead.
    rest = 0.1 * (0.012 + 0.014) / 2
    assert closed.loc[("model", 1, 3), "seconds"] / closed.loc[("model", 1, 3), "steps"] == pytest.approx(
        0.014 + 0.003 + rest
    )
    check = closed_check(tables).set_index(["batch", "gamma"])
    plain = check.loc[(4, 0)]
    assert plain["measured"] == pytest.approx(4 / 0.014) and plain["tokens"] == pytest.approx(1)
    assert plain["measured_low"] < plain["by_steps"] < plain["measured_high"]
    assert plain["by_steps"] == pytest.approx(4 / 0.014)
    assert check.loc[(4, 3), "tokens"] == pytest.approx(
        closed.loc[("measured", 4, 3), "tokens"] / closed.loc[("measured", 4, 3), "steps"] / 4 / 1.6
    )
    section = found.sections[-1]
    assert section.title == "Simulated against measured batches" and "6 batches and gammas" in section.text[0]
    assert found.metrics["serving/simulated.by_steps_over_measured.4.0"] == pytest.approx(1)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("study.law=null", "study.run=nowhere"), "study.run: nowhere is no run's output folder"),
        (("study.law=null", "study.run=batching"), "study.run: .* no artifact rounds.parquet"),
        (("study.law=null", "study.run=cut_off"), "study.run: cut_off.rounds.parquet is no Parquet table"),
        (("study.run=x",), "study.run and study.law"),
        (("study.cost=h101",), "h100_llama31_8b"),
        (("study.arrival_times=nowhere",), "study.arrival_times=nowhere"),
        (("study.batching=nowhere",), "study.batching: nowhere is no run.*the output folder of .experiment=batching"),
        (("study.batching=cut_off",), "study.batching: .* no artifact batching.parquet"),
        (("study.batching=batching", "study.method=medusa"), "it measured ngram, not drafter 'medusa'"),
        (("study.batching=batching", "study.method=ngram", "study.gammas=[2]"), "it measured gammas 1, 3"),
        (("study.batching=batching", "study.method=ngram", "study.slots=8"), "batches up to 4"),
    ],
)
def test_mistakes_are_one_sentence(refused, tmp_path, overrides, words):
    measured_batches(tmp_path / "batching")  # in the working directory
    (tmp_path / "cut_off").mkdir()
    (tmp_path / "cut_off" / "config.yaml").write_text("{}")
    (tmp_path / "cut_off" / "rounds.parquet").write_bytes(b"PAR1")
    refused("serving", *LAW, *SMALL, *overrides, words=words)
