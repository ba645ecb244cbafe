"""Rows and trees drafted by models, level by level, over the caches of their chain drafts."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specdec.models.decoder import Decoder
from specdec.records import Draft, Tree, chain_tree
from specdec.structures.base import Structure
from specdec.tree_building.siblings import How, Laws, grow, index_on


class TreeModel(NamedTuple):
    """A model that drafts a tree, at the beginning of a round.

    Attributes:
        strategy: its name in `Source`.
        pending: committed tokens that the cache lacks, the root last.
        laws: (the model's logits [M, D]) -> laws over the target's tokens [M, V], or scores for ranked children.
    """

    strategy: str
    decoder: Decoder
    pending: Sequence[int]
    laws: Callable[[Tensor], Tensor]


def draft_tree(models: Sequence[TreeModel], structure: Structure, how: How, generator: torch.Generator | None) -> Draft:
    """Draft with one call of each model for each level (see `grow` for how several models share the siblings). The
    first call is over `pending`, the others over root and all nodes so far, from the root's place in the cache on, with
    the tree's mask. Nodes are evaluated again at every level, because the cache holds one sequence and none of the
    branches beside it.

    Afterwards each cache has the committed text and no node of the draft.

    Args:
        models: at least one.
    """
    lengths = [model.decoder.length + len(model.pending) for model in models]
    each = [_laws_after(model) for model in models]

    def after(tokens: Tensor, tree: Tree, nodes: Sequence[int]) -> Tensor:
        return torch.stack([laws(tokens, tree, nodes) for laws in each])  # [K, M, V]

    if len(models) == 1:
        draft = grow(structure, each[0], how, models[0].strategy, generator)
    else:
        draft = grow(structure, after, how, [model.strategy for model in models], generator)
    for model, length in zip(models, lengths, strict=True):
        model.decoder.length = length
    return draft


def _laws_after(model: TreeModel) -> Laws:
    """Return the laws of one model after nodes of the draft so far."""
    decoder, pending = model.decoder, model.pending
    committed = decoder.length + len(pending)
    lacking = torch.tensor(pending, device=decoder.device)

    def after(tokens: Tensor, tree: Tree, nodes: Sequence[int]) -> Tensor:
        if len(tree) == 0:
            return model.laws(decoder.forward(lacking, chain_tree(len(pending) - 1))[-1:])
        decoder.length = committed - 1
        # Ids beyond the model's own stand for no token; it reads its first one instead.
        read = torch.cat([lacking[-1:], torch.where(tokens < decoder.vocab_size, tokens, 0)])
        wanted = index_on(decoder.device, tuple(node + 1 for node in nodes))
        return model.laws(decoder.forward(read, tree).index_select(0, wanted))

    return after
