"""Weights that a traced pass reads once, in order, before it multiplies by them, where that is faster.

The product of a few tokens walks along several rows of a weight at a time, which a processor fetches badly ahead: on an
EPYC, MKL takes float32 weights from memory at 8 GB/s, a sum over them at 24. So the pass first sums the weight, which
brings it into the processor's cache, and forgets the sum. The product is the same call on the same numbers as before.
"""

import time
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import accumulate
from statistics import median

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.nn.functional import linear

from specdec.compiled.packed_products import stored_weight
from specdec.disturbance import watch_of

_WORD, _LINE = 8, 64  # bytes: of an integer that is summed, and of what memory hands over at a time
_LARGEST = 16 << 20  # bytes: a weight that no cache holds would be read from memory twice
_SAMPLE = 256 << 20  # bytes of weights that are timed: more than the caches of most processors
_ROUNDS = 7
_WORTH = 0.95  # a weight is read first if reading and product take less than this part of the product's own time


def read_weights_first(record: GraphModule, tokens: int) -> int:
    """Have a recorded pass read weights before it multiplies by them; return the number of products that do.

    Those of a shape are read if that was faster than the products alone, timed here on the weights themselves.

    Args:
        tokens: number of tokens in the products that are timed. For one, which MKL multiplies on one thread, a word of
            each line of memory is read, on that thread too; for more all words are, by all threads.
    """
    stride = _LINE // _WORD if tokens == 1 else 1
    products = [(node, stored_weight(record, node)) for node in record.graph.nodes]
    found = [(node, weight) for node, weight in products if weight is not None and _can_be_read(weight)]
    shapes = _faster([weight for _, weight in found], tokens, stride)
    chosen = [(node, weight) for node, weight in found if weight.shape in shapes]
    for node, weight in chosen:
        name = f"read_before_{node.name}"
        record.register_buffer(name, _words(weight, stride), persistent=False)
        with record.graph.inserting_before(node):
            record.graph.call_method("sum", (record.graph.get_attr(name),))
    record.recompile()
    return len(chosen)


def _can_be_read(weight: Tensor) -> bool:
    return (
        type(weight) in (Tensor, torch.nn.Parameter)  # neither quantised nor spread over devices
        and weight.device.type == "cpu"
        and weight.is_contiguous()
        and weight.nbytes <= _LARGEST
        and weight.nbytes % _WORD == 0
        and weight.storage_offset() * weight.itemsize % _WORD == 0
    )


def _words(weight: Tensor, stride: int) -> Tensor:
    """Return a view of the words of a weight, `stride` apart. They are integers: floats may be denormal, whose sums are
    slow.
    """
    return weight.detach().view(-1).view(torch.int64)[::stride]


def _faster(weights: Sequence[Tensor], tokens: int, stride: int) -> set[torch.Size]:
    """Return the shapes of the weights whose products are faster after a reading."""
    sizes = accumulate(weight.nbytes for weight in weights)
    sample = [weight for weight, size in zip(weights, sizes, strict=True) if size <= _SAMPLE]
    inputs = {weight.shape: weight.new_ones(1, tokens, weight.shape[-1]) for weight in sample}
    seconds: dict[bool, dict[torch.Size, list[float]]] = {read: defaultdict(list) for read in (False, True)}

    def trial(read: bool) -> dict[torch.Size, float]:
        taken: dict[torch.Size, float] = defaultdict(float)
        for weight in sample:  # in the order of a call, so that none is in the cache because it was the last
            words = _words(weight, stride)
            began = time.perf_counter()
            if read:
                words.sum()
            linear(inputs[weight.shape], weight)
            taken[weight.shape] += time.perf_counter() - began
        return taken

    watch = watch_of(torch.device("cpu"))
    for read in (False, True) * _ROUNDS:
        for shape, total in watch.undisturbed(partial(trial, read)).items():
            seconds[read][shape].append(total)
    return {shape for shape in inputs if median(seconds[True][shape]) < _WORTH * median(seconds[False][shape])}
