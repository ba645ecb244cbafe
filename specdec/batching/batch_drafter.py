"""An ordinary drafter for each slot of a batch, so that any drafter works. Weights and tables are shared."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from specdec.drafters.base import BatchDrafter, Drafter
from specdec.models.decoder import CachedModel
from specdec.targets.base import Target


def batch_drafter(drafter: Drafter, target: Target, slots: int) -> BatchDrafter:
    """Return a drafter of at most `slots` texts at once that drafts as `drafter` does, which was made for `target`: its
    own (`Drafter.batched`), or one for each slot.
    """
    own = drafter.batched(slots)
    return BatchDrafter([twin(drafter, target) for _ in range(slots)]) if own is None else own


def twin(drafter: Drafter, target: Target) -> Drafter:
    """Return a copy of a drafter with a text of its own; it shares the target, weights, tables and tokenizers, none of
    which decoding changes.
    """
    shared = [target, *vars(target).values(), *_unchanged(drafter, set(map(id, [target, *vars(target).values()])))]
    return copy.deepcopy(drafter, {id(each): each for each in shared})


def _unchanged(value: Any, seen: set[int]) -> Iterator[Any]:
    """Yield the parts of a drafter that decoding does not change: networks, tokenizers, and tables of numbers outside a
    decoder, whose cache is the text's own. `seen` are ids of objects that are not looked into again.
    """
    if id(value) in seen or value is None or isinstance(value, str | bytes | int | float | type):
        return
    seen.add(id(value))
    if isinstance(value, nn.Module | Tensor | np.ndarray) or hasattr(value, "convert_ids_to_tokens"):
        yield value
    elif isinstance(value, CachedModel):
        yield value.model
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _unchanged(each, seen)
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _unchanged(each, seen)
    elif type(value).__module__.startswith("specdec."):
        for each in vars(value).values() if hasattr(value, "__dict__") else ():
            yield from _unchanged(each, seen)
