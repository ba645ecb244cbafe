"""Rows and trees drafted by models, level by level, over the caches of their chain drafts."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specdec.models.decoder import Decoder
from specdec.models.ragged_decoder import RaggedDecoder
from specdec.records import Draft, Tree, chain_tree
from specdec.structures.base import Structure
from specdec.tree_building.siblings import Asked, How, Laws, grow, grow_together, growing, index_on


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
        read = _read_after(lacking[-1:], tokens, decoder)
        wanted = index_on(decoder.device, tuple(node + 1 for node in nodes))
        return model.laws(decoder.forward(read, tree).index_select(0, wanted))

    return after


class Growing(NamedTuple):
    """The draft of one of several texts, at the beginning of a round: its model, with the decoder of its slot."""

    model: TreeModel
    structure: Structure
    generator: torch.Generator | None


def draft_trees(texts: Mapping[int, Growing], ragged: RaggedDecoder, how: How) -> dict[int, Draft]:
    """Draft for the texts of several slots as `draft_tree` does for one, with one call of the model for each level."""
    decoders = {slot: each.model.decoder for slot, each in texts.items()}
    committed = {slot: decoders[slot].length + len(each.model.pending) for slot, each in texts.items()}
    lacking = {slot: torch.tensor(each.model.pending, device=ragged.device) for slot, each in texts.items()}

    def after(asked: Mapping[int, Asked]) -> dict[int, Tensor]:
        read, trees = list[Tensor](), list[Tree]()
        for slot, (tokens, tree, _) in asked.items():
            if len(tree) == 0:
                read.append(lacking[slot])
                trees.append(chain_tree(len(lacking[slot]) - 1))
                continue
            decoders[slot].length = committed[slot] - 1
            read.append(_read_after(lacking[slot][-1:], tokens, decoders[slot]))
            trees.append(tree)
        logits = dict(zip(asked, ragged.forward(list(asked), read, trees), strict=True))
        laws: dict[int, Tensor] = {}
        for slot, (_, tree, nodes) in asked.items():
            wanted = index_on(ragged.device, tuple(node + 1 for node in nodes))
            last = logits[slot].index_select(0, wanted) if len(tree) else logits[slot][-1:]
            laws[slot] = texts[slot].model.laws(last)
        return laws

    growths = {slot: growing(each.structure, how, each.model.strategy, each.generator) for slot, each in texts.items()}
    drafts = grow_together(growths, after)
    for slot, decoder in decoders.items():
        decoder.length = committed[slot]
    return drafts


def _read_after(root: Tensor, tokens: Tensor, decoder: Decoder) -> Tensor:
    """Return root and drafted tokens as the model reads them: ids beyond its own stand for no token; it reads its first
    one instead.
    """
    return torch.cat([root, torch.where(tokens < decoder.vocab_size, tokens, 0)])
