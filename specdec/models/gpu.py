"""What a GPU needs that a CPU does not: an attention kernel that takes our masks, and proof that a CUDA graph computes
what plain calls do.

Written from torch's sources and documentation; it has not been run on a GPU.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from specdec.models.cache import KVCache
from specdec.models.compile import Pass, StaticStep, slot_buckets
from specdec.models.draft_loop import StaticLoop
from specdec.records import Tree, chain_tree
from specdec.signals import raise_swallowed

logger = logging.getLogger(__name__)
Graphs = TypeVar("Graphs", StaticStep, StaticLoop)
Plain = Callable[[Tensor, Tree], Pass]
"""A plain call on tokens [N+1] behind the cache's present length."""

# The largest share of the largest logit, or the largest difference of a law, by which a graph may depart from plain
# calls: both are right to rounding, which fused kernels do at other places.
_TOLERANCES = {torch.bfloat16: 0.1, torch.float16: 0.1}
_TOLERANCE = 1e-3


def pin_attention(device: torch.device) -> None:
    """Leave torch the kernels that suit a mask over a cache: memory-efficient attention, or plain products where that
    does not take the number format. Flash attention takes no mask, and is left to calls without one.

    cuDNN's attention, which torch prefers on Hopper and Blackwell, plans anew for every length of the keys, which takes
    tens of milliseconds; here each call has another.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


def trusted(
    make: Callable[[], Graphs], departure_of: Callable[[Graphs], float], dtype: torch.dtype, what: str
) -> Graphs | None:
    """Return captured graphs that do what plain calls do: those of kernels that inductor fused, or else of the model's
    own; None where neither can be had. Each fault is a warning.

    Args:
        departure_of: measures by how much they depart from plain calls.
        what: the call that they stand for.
    """
    for optimised, kind, then in ((True, "compiled", "captured without inductor"), (False, "captured", "eager")):
        try:
            graphs = make()
            if optimised:
                graphs.optimise()
            graphs.capture()
            apart, most = departure_of(graphs), tolerance(dtype)
        except RuntimeError as error:  # of CUDA, Dynamo and inductor alike
            raise_swallowed()
            fault = (str(error).strip() or type(error).__name__).splitlines()[0]
        else:
            if apart <= most:
                return graphs
            fault = f"it departs from plain calls by {apart:.3g}, more than {most:g}"
        logger.warning("%s cannot be %s for a CUDA graph, so it is %s: %s", what, kind, then, fault)
    return None


def step_departure(step: StaticStep, cache: KVCache, plain: Plain, context_length: int, vocab_size: int) -> float:
    """Return by how much a pass departs from plain calls (see `departure`), at most, on chains and trees of all its
    tokens and on the root alone, at the end of every bucket of slots. The cache has to be free, and is free afterwards.
    """
    size, device = step.size, cache.layers[0].keys.device
    deep = size // 2
    trees = (chain_tree(size - 1), Tree((*range(-1, deep - 1), *[-1] * (size - 1 - deep))), chain_tree(0))
    found = [0.0]
    with random_slots(cache):
        for slots in slot_buckets(cache.capacity):
            prefix = min(slots, context_length) - size
            for tree in trees if prefix > 0 else ():
                tokens = (torch.arange(len(tree) + 1, device=device) * 7919 + 1) % vocab_size
                ours = step(tokens, prefix, tree).logits
                found.append(departure(ours, _after(cache, prefix, plain, tokens, tree)))
    return max(found)


def loop_departure(loop: StaticLoop, plain: Plain, context_length: int) -> float:
    """Return by how much the drafts of a loop depart from plain calls on the drafted tokens, at most (see
    `StaticLoop.departure`). The loop's cache has to be free, and is free afterwards.
    """
    cache, found = loop.cache, [0.0]

    def logits(tokens: Tensor, place: int) -> Tensor:
        return _after(cache, place, plain, tokens, chain_tree(len(tokens) - 1))

    with random_slots(cache):
        for slots in slot_buckets(cache.capacity):
            place = min(slots, context_length) - loop.gamma - 1
            if place > 0:
                found.append(loop.departure(logits, place))
    return max(found)


def _after(cache: KVCache, prefix: int, plain: Plain, tokens: Tensor, tree: Tree) -> Tensor:
    cache.length = prefix
    return plain(tokens, tree).logits


def tolerance(dtype: torch.dtype) -> float:
    """Return the most by which a captured call may depart from a plain one."""
    return _TOLERANCES.get(dtype, _TOLERANCE)


def departure(found: Tensor, plain: Tensor) -> float:
    """Return the largest difference of two tensors of logits [..., V] as a share of the largest plain one; infinite if
    one of them is not finite.
    """
    share = (found.float() - plain.float()).abs().amax() / plain.float().abs().amax().clamp_min(1.0)
    return float(share.nan_to_num(torch.inf))


@contextmanager
def random_slots(cache: KVCache) -> Iterator[None]:
    """Hold random numbers in every slot of a free cache within the context, so that a call that reads a wrong one gives
    other logits.
    """
    layers = [layer for layer in cache.layers if layer.is_initialized]
    for number, layer in enumerate(layers):
        generator = torch.Generator(layer.keys.device).manual_seed(number)
        layer.keys.normal_(generator=generator)
        layer.values.normal_(generator=generator)
    try:
        yield
    finally:
        for layer in layers:
            layer.keys.zero_()
            layer.values.zero_()
        cache.length = 0
