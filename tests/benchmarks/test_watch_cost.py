"""The share of decoding that watching for other work takes: texts of the pocket model with the watch and without, in
turn.
"""

import time

import numpy as np
import pytest
import torch
from fixtures.measuring import load, target_of
from fixtures.small_parts import read_group_values

from specdec.clock import CpuClock
from specdec.decode import generate
from specdec.disturbance import ProcessWatch, Watch
from specdec.drafters import drafters
from specdec.records import Request
from specdec.structures import structures
from specdec.verifiers import verifiers

pytestmark = pytest.mark.benchmark
PAIRS, TOKENS = 100, 48


def test_share_of_watching(log_figure):
    torch.set_num_threads(2)
    target = target_of("causal", compile="trace")
    drafter = drafters.build(read_group_values("drafter", "ngram"), target=target)
    prompt = tuple(target.tokenizer("def read(self, size=-1):\n    if size < 0:\n        return self.").input_ids)
    clocks = [CpuClock(), CpuClock()]
    clocks[0].watch, clocks[1].watch = Watch(), ProcessWatch()
    for gamma in (0, 4):
        structure = structures.build({"name": "chain", "gamma": 4}).resized(gamma)
        target.prepare({1, gamma + 1}, len(prompt) + TOKENS + 8)
        seconds = np.zeros((PAIRS, 2))
        for pair in range(-3, PAIRS):  # the first pairs warm up
            for place in (0, 1) if pair % 2 else (1, 0):
                began = time.perf_counter()
                made = generate(
                    target=target, drafter=drafter, verifier=verifiers.build({"name": "greedy"}),
                    structure=structure, request=Request(prompt, TOKENS), clock=clocks[place],
                )  # fmt: skip
                seconds[pair, place] = time.perf_counter() - began
        dice = np.random.default_rng(0)
        draws = np.median(seconds[dice.integers(0, PAIRS, (4000, PAIRS))], axis=1)
        ratios = draws[:, 1] / draws[:, 0]
        first, second = np.median(seconds, axis=0)
        log_figure(
            what="with the watch over without",
            gamma=gamma,
            pairs=PAIRS,
            ms_a_round=round(1e3 * first / len(made.rounds), 3),
            ratio=round(second / first, 4),
            ratio_95=[round(float(end), 4) for end in np.percentile(ratios, [2.5, 97.5])],
            **load(),
        )
        assert second / first < 1.05
