"""Decoding keeps nothing of the tokens before: whatever one needs is given back before the next."""

import gc
import tracemalloc
from pathlib import Path

import pytest
import torch
from fixtures.decoding import decode
from fixtures.drafting import ngram

import specdec
from specdec.targets.causal import Causal

TOKENS = 200


@pytest.fixture
def held():
    """`held()` is what all tensors hold, and what else was allocated at lines of ours, in bytes.

    The resident memory of this process is no measure: libraries and the allocator that served a thousand tests keep
    megabytes of their own.
    """
    ours = tracemalloc.Filter(True, str(Path(specdec.__file__).parent / "*"))

    def measure() -> int:
        gc.collect()
        tensors = [each for each in gc.get_objects() if type(each) is torch.Tensor and each.layout is torch.strided]
        others = tracemalloc.take_snapshot().filter_traces([ours]).traces
        return sum(each.untyped_storage().nbytes() for each in tensors) + sum(each.size for each in others)

    tracemalloc.start()
    yield measure
    tracemalloc.stop()


@pytest.mark.slow
def test_decoding_does_not_grow_the_process(tiny_model, sampling, held):
    """Keeping the p of every round alone would add 750 kB: 4 texts of some 100 rounds of 5 x 61 numbers."""
    target = Causal(tiny_model("llama"), sampling(temperature=0.0))
    drafter = ngram(target)

    def decoded(times: int) -> int:
        for _ in range(times):
            decode(target, drafter, 4, [3, 1, 4, 1, 5, 9, 2, 6], TOKENS)
        return held()

    decoded(1)  # made once: masks, tables, what libraries remember
    before = decoded(1)
    assert decoded(4) - before < 100_000
