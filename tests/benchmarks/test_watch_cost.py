"""The share of decoding that watching for other work takes: every second round of a text of the pocket model is
watched, and the others are not, from the beginning of a round to that of the next.

A watched round is compared with the mean of its two neighbours, so that neither context nor drift tells; threes of
which one took far longer than usual, as beside other work, are left out. What the kernel shows is read once in so many
milliseconds, always in a watched round: so what these take longer is what watching takes of all. Two minutes.
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
TEXTS, TOKENS = 60, 256


class EverySecond(Watch):
    """Watches every second of what is read before and after, and keeps when each was begun."""

    def __init__(self) -> None:
        self._watch, self._calls = ProcessWatch(), 0
        self.begun: list[float] = []

    def read(self) -> float:
        if self._calls % 2 == 0:
            self.begun.append(time.perf_counter())
        self._calls += 1
        return self._watch.read() if (self._calls + 1) // 2 % 2 else 0.0


@pytest.mark.parametrize("compiled", ["trace", True])
@pytest.mark.timeout(1800)
def test_share_of_watching(compiled, log_figure):
    torch.set_num_threads(2)
    target = target_of("causal", compile=compiled)
    drafter = drafters.build(read_group_values("drafter", "none"), target=target)
    prompt = tuple(target.tokenizer("def read(self, size=-1):\n    if size < 0:\n        return self.").input_ids)
    structure = structures.build({"name": "chain", "gamma": 1}).resized(0)
    target.prepare({1}, len(prompt) + TOKENS + 8)
    extra, took = np.zeros(TEXTS), np.zeros(TEXTS)
    for text in range(-1, TEXTS):  # the first one warms up
        clock = CpuClock()
        clock.watch = watch = EverySecond()
        generate(
            target=target, drafter=drafter, verifier=verifiers.build({"name": "greedy"}), structure=structure,
            request=Request(prompt, TOKENS), clock=clock,
        )  # fmt: skip
        rounds = np.diff(watch.begun[1:])[: TOKENS - 2]  # behind the prefill, which is watched as a round is
        usual = np.max([rounds[:-2], rounds[1:-1], rounds[2:]], axis=0)[::2] < 1.35 * np.median(rounds)
        longer = (rounds[1:-1] - 0.5 * (rounds[:-2] + rounds[2:]))[::2]  # the first round is not watched, the second is
        extra[text], took[text] = longer[usual].mean() / 2, np.median(rounds)
    dice = np.random.default_rng(0).integers(0, TEXTS, (4000, TEXTS))
    share, draws = extra.sum() / took.sum(), extra[dice].sum(axis=1) / took[dice].sum(axis=1)
    log_figure(
        what="share of watching",
        compile=compiled,
        rounds=TEXTS * (TOKENS - 2),
        ms_a_round=round(1e3 * float(np.median(took)), 3),
        share=round(float(share), 5),
        share_95=[round(float(end), 5) for end in np.percentile(draws, [2.5, 97.5])],
        **load(),
    )
    assert share < 0.01
