"""Calibration leaves the target where it was, and measures the sizes asked for."""

import torch

from specdec.drafters import drafters
from specdec.measurement.cost import calibrate
from specdec.measurement.peers import TransformersGenerate
from specdec.measurement.timers import CpuClock
from specdec.prompts import Prompt
from specdec.records import EMPTY
from specdec.sampling import generator_for
from specdec.structures import structures
from specdec.targets.causal import Causal


def test_sizes_repeats_and_an_untouched_cache(tiny_model, sampling, group_values):
    target = Causal.from_model(tiny_model("llama"), sampling(temperature=0.0))
    drafter = drafters.build(group_values("drafter", "ngram"), target=target)
    chain = structures.build({"name": "chain", "gamma": 4})
    prompt = [5, 6, 7, 5, 6]
    found = calibrate(target, drafter, chain, prompt, [3, 5], 4, CpuClock(), generator_for(0, "p", "calibration"))
    assert {rows: len(times) for rows, times in found.calls.items()} == {1: 4, 3: 4, 5: 4}
    assert found.context == 5 and len(found.draft) == 4
    assert min(time for times in found.calls.values() for time in times) > 0
    assert found.as_dict()["t_n"][1]["ratio"] == 1.0
    with torch.inference_mode():
        after = target.verify(EMPTY)
        target.start(prompt, 8)
        assert (after == target.verify(EMPTY)).all()


def test_the_peer_writes_the_same_text_and_counts_by_our_rule(tiny_model, sampling):
    target = Causal.from_model(tiny_model("llama"), sampling(temperature=0.0))
    row = TransformersGenerate(target, 12)(Prompt("p", "c", "", (3, 1, 4, 1, 5)))
    assert row["peer"] == "generate" and row["tokens"] == 12 and row["seconds"] > 0
