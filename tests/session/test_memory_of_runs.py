"""Resident memory does not grow while decoding: whatever a token needs is given back before the next."""

import gc

import psutil
import pytest

from specdec.clock import CpuClock
from specdec.decode import generate
from specdec.drafters import drafters
from specdec.records import Request
from specdec.structures import structures
from specdec.targets.causal import Causal
from specdec.verifiers import verifiers

TOKENS = 200


@pytest.mark.slow
def test_decoding_does_not_grow_the_process(tiny_model, sampling):
    """Keeping the p of every round alone would add over a megabyte: 4 texts of some 100 rounds of 5 x 61 numbers."""
    target = Causal(tiny_model("llama"), sampling(temperature=0.0))
    values = {"name": "ngram", "q": "longest", "order_max": 3, "order_min": 1, "matches_max": 8, "occurrence": "common"}
    drafter = drafters.build(values, target=target)
    verifier = verifiers.build({"name": "greedy"})
    structure = structures.build({"name": "chain", "gamma": 4})

    def decode(times):
        for _ in range(times):
            generate(
                target=target,
                drafter=drafter,
                verifier=verifier,
                structure=structure,
                request=Request([3, 1, 4, 1, 5, 9, 2, 6], TOKENS),
                clock=CpuClock(),
            )
        gc.collect()
        return psutil.Process().memory_info().rss

    decode(1)  # lazily allocated once: kernels, masks, arenas
    before = decode(1)
    assert decode(4) - before < 500_000
