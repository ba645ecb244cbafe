"""Study `batching` end to end: on an explicit law, and on a tiny model with a cost model of its calls."""

import json
from types import SimpleNamespace

import pytest

from specdec.batching.decode_batch import BatchDecoded, BatchStep
from specdec.config import validated
from specdec.cost_model import SimulatedCost
from specdec.studies.batching import _measured

SMALL = ("study.batches=[1,3]", "study.gammas=[1,2]", "study.repeats=2", "study.texts=2", "study.calls=2")
PROMPTS = "prompts.tokens=[[0,1,2,0,1,2,0],[1,1,2,1,1,2,1],[2,0,2,0,2,0],[0,0,1,0,0,1]]"
ON_A_TABLE = ("study.drafters=[ngram]", "~target.dtype", PROMPTS)


KEYS = ["repeat", "drafter", "gamma", "batch"]


@pytest.mark.slow
def test_every_arm_decodes_at_every_batch(study):
    found, tables = study("batching", *SMALL, *ON_A_TABLE)
    lines = tables["batching"]
    assert len(lines) == 2 * 1 * 2 * 2 and not lines.duplicated(KEYS).any()
    assert set(lines[lines["batch"] == 3]["texts"]) == {6} and set(lines[lines["batch"] == 1]["texts"]) == {2}
    assert (lines["all_tokens"] == 24 * lines["texts"]).all()  # max_new_tokens of each; a table never ends
    # At batch 1 every step is full, and plain decoding is decoded twice.
    alone = lines[lines["batch"] == 1]
    assert (alone["tokens"] == alone["all_tokens"]).all() and (alone["rounds"] == alone["steps"]).all()
    assert (alone["baseline_tokens"] == 2 * alone["all_tokens"]).all()
    assert (alone["baseline_steps"] == alone["baseline_tokens"]).all()
    assert (lines["rounds"] == lines["batch"] * lines["steps"]).all()
    assert (lines["places"] <= (lines["gamma"] + 1) * lines["rounds"]).all()
    assert (lines["places"] >= lines["rounds"] + lines["offered"]).all()
    parts = lines[["draft_s", "verify_s", "accept_s", "commit_s"]].sum(axis=1)
    assert parts.to_numpy() == pytest.approx(lines["seconds"].to_numpy())
    assert (lines["differs"] == 0).all() and (lines["same"] == lines["texts"]).all()
    offers = tables["offers"].groupby("gamma")["rounds"].sum()
    assert offers.to_dict() == lines.groupby("gamma")["rounds"].sum().to_dict()
    assert (tables["cost"][["prompts", "largest"]] == [4, 6]).all(axis=None)
    assert "2 repeats are too few for intervals, which need 5." in " ".join(found.sections[0].text)
    told = {*KEYS, "tokens", "seconds", "steps", "tokens_per_round", "baseline_seconds"}  # that a simulation reads
    assert told <= set(lines.columns)
    assert set(tables["calls"]["tokens"]) == {1, 2, 3} and tables["calls"]["model_s"].isna().all()
    assert found.metrics["batching/repeats"] == 2
    assert "There is no cost model of single calls" in found.sections[0].text[0]


@pytest.mark.slow
def test_a_model_has_a_cost_model_of_its_calls(study, tiny_target, tmp_path):
    found, tables = study(
        "batching", *SMALL, *tiny_target[:-1], "study.drafters=[ngram]", "measurement.max_new_tokens=8",
        "study.repeats=1", "measurement.cost_rows=8", "measurement.cost_contexts=[8,16]", "measurement.cost_calls=1",
    )  # fmt: skip
    calls = tables["calls"]
    cost = json.loads((tmp_path / "out" / "batching.json").read_text())["cost"]
    model = validated(SimulatedCost, cost, where="cost")
    line = calls[(calls["batch"] == 3) & (calls["tokens"] == 3)].iloc[0]
    assert line["model_s"] == pytest.approx(model.seconds(9, int(line["context"]), 3))
    assert (tables["cost"]["rows"] == 8).all() and tables["cost"]["error"].notna().all()
    assert "The cost model fitted to calls on a single sequence predicted ngram " in found.sections[0].text[0]


def step(*rounds):
    """A step of 2 seconds with the draft tokens and the committed ones of each sequence."""
    sizes = [SimpleNamespace(draft_tokens=(0,) * draft, committed=(0,) * tokens) for draft, tokens in rounds]
    return BatchStep(sizes, 0.5, 1.0, 0.25, 0.25, 0.125)


def test_only_steps_with_every_slot_in_use_count():
    """Two slots and three texts of 2, 3 and 2 rounds: the second slot has no text any more in the last step."""
    steps = [step((4, 3), (1, 2)), step((0, 1), (2, 2)), step((0, 1), (3, 3)), step((3, 2))]
    sums = _measured(BatchDecoded([], steps), 2)
    assert (sums["steps"], sums["rounds"], sums["tokens"], sums["all_tokens"]) == (3, 6, 12, 14)
    assert (sums["seconds"], sums["all_seconds"], sums["prefill_s"]) == (6.0, 8.0, 0.5)
    assert sums["places"] == 2 * (5 + 3 + 4) and sums["offered"] == 10
    assert sums["tokens_per_round"] == 2
