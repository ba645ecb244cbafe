"""The command on recorded streams, end to end: every account exists, time is the cost model's, and what a run of ours
left is replayed in the rounds that it took.
"""

import json
import random

import pandas as pd
import pytest
from fixtures.refusals import refused
from fixtures.small_parts import composed

from specdec.plan.plan import plan
from specdec.session.parts import open_parts
from specdec.text.streams import Stream, write_streams

QUICK = ("measurement.bootstrap=50", "measurement.gammas=[2]", "tracking.enabled=false")


@pytest.fixture
def command(run_into):
    """`command(name, ...)` runs specdec.run into the folder `name`; it gives the folder."""

    def call(name, *arguments):
        code, error, folder = run_into(name, *arguments)
        assert code == 0, error
        return folder

    return call


@pytest.fixture
def trace(tmp_path):
    """Texts of phrases that come again, of different lengths, with foreign accepted lengths."""
    streams = []
    for number in range(4):
        dice = random.Random(number)
        book = [dice.choices(range(40), k=dice.randint(3, 9)) for _ in range(5)]
        text = [token for _ in range(14) for token in dice.choice(book)][: 50 + 9 * number]
        lengths = tuple(dice.choices(range(1, 5), k=len(text) - 20))
        category = "code" if number % 2 else "math"
        streams.append(Stream(str(number), category, tuple(text[:20]), tuple(text[20:]), {"acc_eagle": lengths}))
    write_streams(tmp_path / "trace.jsonl.gz", streams)
    return tmp_path / "trace.jsonl.gz", streams


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["ngram", "recorded"])
def test_a_trace_is_accounted_for(command, trace, drafter):
    path, streams = trace
    folder = command("out", "target=replay", f"target.path={path}", f"+drafter={drafter}", *QUICK)
    rounds = pd.read_parquet(folder / "rounds.parquet")
    written = rounds.groupby(["method", "gamma", "prompt"])["committed"].sum()
    assert sorted(set(written)) == sorted(len(stream.generated) for stream in streams), "the record's own lengths"
    assert set(rounds["category"]) == {"code", "math"}
    # Published coefficients: a call on one row behind 20 tokens, and the overhead of every round.
    first = rounds[(rounds["method"] == "baseline") & (rounds["round"] == 0)]
    assert first["verify_s"].to_numpy() == pytest.approx(0.00588590713 + 2.10103129e-05 + 19 * 3.92645679e-08)
    assert rounds["commit_s"].to_numpy() == pytest.approx(0.00120683946)
    drafted = rounds[rounds["offered"] > 0]["draft_s"]
    verified = rounds[rounds["offered"] > 0]["verify_s"]
    assert (
        (drafted > 0.002).all() if drafter == "recorded" else (drafted / verified).to_numpy() == pytest.approx(0.005875)
    )
    notes = json.loads((folder / "summary.json").read_text())["notes"]
    whole = sum(len(stream.generated) for stream in streams)
    assert f"Replayed: 4 recorded texts, whole, {whole} tokens." in notes
    assert ("Drafts of acc_eagle are charged what a draft by a model takes" in " ".join(notes)) is (
        drafter == "recorded"
    )
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["model"]["time"] == "simulated" and environment["model"]["cost_model"] == "h100_llama31_8b"
    assert (folder / "account.json").is_file()
    assert "simulated" in (folder / "report.md").read_text()


@pytest.mark.slow
def test_a_run_is_replayed_from_its_own_folder(command):
    """Texts, and the times of the machine that wrote them."""
    table = ("+debug=tiny", "measurement.max_new_tokens=40", *QUICK)
    live = command("live", "+drafter=ngram", *table, "measurement.null=false")
    replayed = ("target=replay", f"target.path={live / 'generations.jsonl'}", f"target.cost={live}")
    folder = command("again", "+drafter=ngram", *replayed, "measurement.max_new_tokens=40", *QUICK)
    kept = ["offered_nodes", "offered", "accepted", "committed", "rejected", "truncation", "source", "rank", "context"]
    one, two = (pd.read_parquet(each / "rounds.parquet") for each in (live, folder))
    for table in (one, two):
        table["prompt"] = table["prompt"].str.removeprefix("recorded/")
    one = one[one["gamma"].isin(two["gamma"].unique())]
    keys = ["method", "gamma", "prompt", "round"]
    one, two = (each.sort_values(keys).reset_index(drop=True)[keys + kept] for each in (one, two))
    pd.testing.assert_frame_equal(one, two)


def test_bad_input_is_one_sentence():
    """Bad options alone, for which no record is read; bad records are for the tests of the target."""
    for arguments, sentence in (
        (("target=replay",), "Missing key target.path"),
        (("target=replay", "target.path=nowhere.jsonl"), "nowhere.jsonl does not exist"),
        (("+debug=tiny", "measurement.max_new_tokens=null"), "target 'table' would write without an end"),
    ):
        with refused(sentence):
            open_parts(plan(composed("+drafter=ngram", *arguments)))


@pytest.mark.slow
def test_a_replay_of_the_suffix_drafter_knows_the_earlier_outputs_of_its_run(command):
    """Rounds along a run's own texts are those that it took, at every gamma and in every repeat."""
    circle = "target.law=[[0.1,0.8,0.1],[0.1,0.1,0.8],[0.8,0.1,0.1]]"  # of all tokens, so each is in every output
    prompts = "prompts.tokens=[[0],[1],[2,0,2]]"
    keys = ("measurement.max_new_tokens=40", "measurement.repeats=2", *QUICK, "measurement.gammas=[2,5]")
    folder = command("out", "+drafter=suffix", "+debug=tiny", circle, prompts, *keys)
    replay, rounds = (pd.read_parquet(folder / f"{name}.parquet") for name in ("replay", "rounds"))
    taken = rounds[rounds["method"] == "suffix"].groupby(["gamma", "prompt", "repeat"]).size()
    own = replay[replay["kind"] == "own"].set_index(["gamma", "prompt", "repeat"])["rounds"]
    assert len(own) and own.sort_index().tolist() == taken.sort_index().tolist()
    # A prompt of one token repeats nothing: what is offered at once is from an earlier output.
    first = rounds[(rounds["method"] == "suffix") & (rounds["round"] == 0) & (rounds["context"] == 1)]
    assert (first["offered"] > 0).any()


@pytest.mark.slow
def test_a_walked_run_leaves_what_a_decoded_one_does(command, trace, monkeypatch):
    """The same files; the same tables, but for readings of the clock, which warmed up first. The beginnings alone are
    replayed, and a note says so.
    """
    path, streams = trace
    shape = ("structure=tree", "structure.nodes=6")
    arguments = ("target=replay", f"target.path={path}", "+drafter=ngram", *shape, *QUICK)
    walked = command("walked", *arguments, "measurement.max_new_tokens=40")
    monkeypatch.setattr("specdec.session.parts.walks", lambda target, drafter: False)
    decoded = command("decoded", *arguments, "measurement.max_new_tokens=40")
    files = [sorted(str(each.relative_to(folder)) for each in folder.rglob("*")) for folder in (walked, decoded)]
    assert files[0] == files[1]
    for name in ("rounds", "replay", "alpha"):
        one, two = (pd.read_parquet(folder / f"{name}.parquet") for folder in (walked, decoded))
        pd.testing.assert_frame_equal(one, two, check_exact=False, rtol=1e-9)
    one, two = ((folder / "traces.json").read_text() for folder in (walked, decoded))
    assert one == two
    sizes = [len(stream.generated) for stream in streams]
    (note,) = [note for note in json.loads((walked / "summary.json").read_text())["notes"] if "Replayed" in note]
    used = sum(min(40, size) for size in sizes)
    assert note.startswith(f"Replayed: {used} of the {sum(sizes)} recorded tokens of 4 texts, at most 40 of each")
