"""Proof, before it is used, that a CUDA graph computes what plain calls do."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

from specdec.compiled.cuda_graphs import StaticStep, slot_buckets
from specdec.compiled.draft_loop import StaticLoop
from specdec.models.cache import KVCache
from specdec.models.decoder import Decoder
from specdec.records import Tree, chain_tree
from specdec.signals import raise_swallowed

logger = logging.getLogger(__name__)
Graphs = TypeVar("Graphs", StaticStep, StaticLoop)
# The largest share of the largest logit, or the largest difference of a law, by which a graph may depart from plain
# calls: both are right to rounding, which fused kernels do at other places.
_TOLERANCES = {torch.bfloat16: 0.1, torch.float16: 0.1}
_TOLERANCE = 1e-3


def trusted(
    make: Callable[[], Graphs], departure_of: Callable[[Graphs, Decoder], float], decoder: Decoder, what: str
) -> Graphs | None:
    """Return captured graphs that do what plain calls do: those of kernels that inductor fused, or else of the model's
    own; None where neither can be had. Each fault is a warning. Call while no text is in the decoder's cache.

    Args:
        departure_of: measures by how much they depart from plain calls (`step_departure`, `loop_departure`).
        what: the call that they stand for.
    """
    for optimised, kind, then in ((True, "compiled", "captured without inductor"), (False, "captured", "eager")):
        try:
            graphs = make()
            if optimised:
                graphs.optimise()
            graphs.capture()
            apart, most = departure_of(graphs, decoder), tolerance(decoder.model.dtype)
        except RuntimeError as error:  # of CUDA, Dynamo and inductor alike
            raise_swallowed()
            fault = (str(error).strip() or type(error).__name__).splitlines()[0]
        else:
            if apart <= most:
                return graphs
            fault = f"it departs from plain calls by {apart:.3g}, more than {most:g}"
        logger.warning("%s: %s cannot be %s for a CUDA graph, so it is %s: %s", decoder.name, what, kind, then, fault)
    return None


def step_departure(step: StaticStep, decoder: Decoder) -> float:
    """Return by how much a pass departs from plain calls (see `departure`), at most, on chains and trees of all its
    tokens and on the root alone, at the end of every bucket of slots. The cache has to be free, and is free afterwards.
    """
    cache, size, deep = decoder.cache, step.size, step.size // 2
    trees = (chain_tree(size - 1), Tree((*range(-1, deep - 1), *[-1] * (size - 1 - deep))), chain_tree(0))
    departures = [0.0]
    with random_slots(cache):
        for slots in slot_buckets(cache.capacity):
            prefix = min(slots, decoder.context_length) - size
            for tree in trees if prefix > 0 else ():
                tokens = (torch.arange(len(tree) + 1, device=decoder.device) * 7919 + 1) % decoder.vocab_size
                ours = step(tokens, prefix, tree).logits
                cache.length = prefix
                departures.append(departure(ours, decoder.plain(tokens, tree).logits))
    return max(departures)


def loop_departure(loop: StaticLoop, decoder: Decoder) -> float:
    """Return by how much the drafts of a loop depart from plain calls on the drafted tokens, at most (see
    `StaticLoop.departure`). The loop's cache has to be free, and is free afterwards.
    """
    departures = [0.0]
    with random_slots(loop.cache):
        for slots in slot_buckets(loop.cache.capacity):
            place = min(slots, decoder.context_length) - loop.gamma - 1
            if place > 0:
                departures.append(loop.departure(decoder, place))
    return max(departures)


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
