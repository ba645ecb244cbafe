"""Study `grid`: replayed rounds are those of live decoding, times are those that were measured, and bad input."""

import json

import pytest

from specdec.text.streams import Stream, write_streams

SMALL = ("study.k=[1,4]", "study.w=[1,3]", "study.repeats=2", "study.calls=1", "study.probe_tokens=8",
         "study.whole_runs=1", "study.live_prompts=2")  # fmt: skip
TOKENS = 12
BLOCKS = {(1, 1), (1, 3), (4, 1), (4, 3)}


@pytest.mark.parametrize("evaluation", ["packed", pytest.param("rows", marks=pytest.mark.slow)])
def test_replayed_rounds_are_the_live_ones(study, tiny_target, evaluation):
    few = ("study.contexts=2", f"measurement.max_new_tokens={TOKENS}", f"target.evaluation={evaluation}")
    found, tables = study("ngrammys_grid", *tiny_target, *SMALL, *few)
    replay, live = tables["replay"], tables["live"]
    assert set(zip(replay["k"], replay["w"], strict=True)) == BLOCKS
    assert replay["tokens"].eq(TOKENS).all() and replay["rounds"].lt(TOKENS).any()  # something is accepted
    runs = live[live["w"] > 0].merge(replay, on=["k", "w", "stream"], suffixes=("", "_replayed"))
    assert len(runs) == len(BLOCKS) * 2 * 2  # prompts, repeats
    assert runs["identical"].all() and (runs["rounds"] == runs["rounds_replayed"]).all()
    whole = tables["whole"]
    best = int(found.metrics["grid/best_k"]), int(found.metrics["grid/best_w"])
    assert set(zip(whole["k"], whole["w"], strict=True)) == {(1, 0), best}  # (10, 10) is no part of this grid
    assert whole.groupby(["k", "w"]).size().to_dict() == {(1, 0): 4, best: 4}
    drafted = whole[whole["w"] > 0].merge(replay, on=["k", "w", "stream"], suffixes=("", "_replayed"))
    assert drafted["identical"].all() and (drafted["rounds"] == drafted["rounds_replayed"]).all()
    plain = live[live["w"] == 0]
    assert (plain["rounds"] == plain["tokens"]).all()
    assert found.metrics["grid/live.same_rounds"] == 1
    totals = replay.groupby(["k", "w"])[["tokens", "rounds"]].sum()
    per_call = totals["tokens"] / totals["rounds"]
    assert found.metrics["grid/best_tokens_per_call"] == pytest.approx(per_call.max())
    assert found.curves["curve/grid/tokens_per_call.k4"] == pytest.approx(per_call.loc[4].to_dict())
    assert all(0 < found.curves["curve/grid/speedup.k1"][w] < 40 for w in (1, 3))
    # Rows are counted after what they share is merged.
    assert (replay["paths"] <= replay["k"] * replay["rounds"]).all()
    assert (replay["nodes"] <= replay["paths"] * replay["w"]).all()
    single = replay[(replay["k"] == 1) & (replay["w"] == 1)]
    assert (single["nodes"] == single["paths"]).all()
    assert (replay["context"] > 5).all() and (replay["context"] < 9 + TOKENS).all()
    # Every repeat is timed.
    times, host = tables["block_times"], tables["host_times"]
    assert times["seconds"].gt(0).all() and set(times["repeat"]) == {0, 1} and times["context"].nunique() == 2
    assert set(zip(times["k"], times["w"], strict=True)) == BLOCKS | {(1, 0)}
    assert set(zip(host["k"], host["w"], strict=True)) == BLOCKS | {(1, 0)}
    assert host.loc[host["w"] == 0, "nodes"].eq(0).all() and host["overhead_s"].gt(0).all()


def test_a_recording_has_simulated_times_and_no_live_run(study, tmp_path):
    """Two turns of one conversation."""
    texts = {"s": (1, 2, 3, 4) * 10, "s/turn2": (5, 6, 7, 5, 6, 8) * 6}
    write_streams(tmp_path / "s.jsonl", [Stream(name, "c", text[:5], text[5:]) for name, text in texts.items()])
    target = ("drafter=ngram", "structure=rows", "target=replay", f"target.path={tmp_path / 's.jsonl'}")
    recorded = (*target, "prompts=recorded", "measurement.max_new_tokens=30")
    found, tables = study("ngrammys_grid", *recorded, *SMALL)
    assert set(tables["replay"]["stream"]) == set(texts) and set(tables["replay"]["prompt"]) == {"s"}
    # Each of 30 tokens behind a prompt of 5 is chosen with one token fewer in the cache than stands before it.
    assert (tables["replay"]["context"] == sum(range(5, 35)) / 30).all()
    assert tables["live"].empty and tables["whole"].empty and not [name for name in found.metrics if "live" in name]
    assert "simulated" in found.sections[1].title.lower() and "cost model" in " ".join(found.sections[1].text)
    assert json.loads((tmp_path / "out" / "study.json").read_text())["simulated"] is True
    # 12 tokens more, by the published coefficient of each.
    times = tables["block_times"].set_index(["k", "w"])["seconds"]
    assert times.loc[4, 3].iloc[0] - times.loc[1, 0].iloc[0] == pytest.approx(12 * 2.10103129e-5)
