"""Resident memory does not grow while decoding: whatever a token needs is given back before the next."""

import gc

import psutil
import pytest
from fixtures.decoding import decode
from fixtures.drafting import ngram

from specdec.targets.causal import Causal

TOKENS = 200


@pytest.mark.slow
def test_decoding_does_not_grow_the_process(tiny_model, sampling):
    """Keeping the p of every round alone would add over a megabyte: 4 texts of some 100 rounds of 5 x 61 numbers."""
    target = Causal(tiny_model("llama"), sampling(temperature=0.0))
    drafter = ngram(target)

    def decoded(times):
        for _ in range(times):
            decode(target, drafter, 4, [3, 1, 4, 1, 5, 9, 2, 6], TOKENS)
        gc.collect()
        return psutil.Process().memory_info().rss

    decoded(1)  # lazily allocated once: kernels, masks, arenas
    before = decoded(1)
    assert decoded(4) - before < 500_000
