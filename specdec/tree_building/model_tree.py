"""Rows and trees drafted by models, level by level, over the caches of their chain drafts."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from specdec.models.decoder import Decoder
from specdec.models.ragged_decoder import RaggedDecoder
from specdec.records import Draft, Tree, chain_tree
from specdec.structures.base import Structure
from specdec.tree_building.siblings import Asked, How, grow, grow_together, growing, index_on


class TreeModel(NamedTuple):
    """A model that drafts a tree, at the beginning of a round."""

    strategy: str  # its name in `Source`
    decoder: Decoder
    pending: Sequence[int]  # committed tokens that the cache lacks, the root last
    laws: Callable[[Tensor], Tensor]  # the model's logits [M, D] -> laws [M, V] over the target's tokens, or scores


def draft_tree(models: Sequence[TreeModel], structure: Structure, how: How, generator: torch.Generator | None) -> Draft:
    """Draft with one call of each model for each level (see `growing` for how several models share the siblings). The
    first call is over `pending`, the others over root and all nodes so far, from the root's place in the cache on, with
    the tree's mask. Nodes are evaluated again at every level, because the cache holds one sequence and none of the
    branches beside it. Afterwards each cache has the committed text and no node of the draft.
    """
    readings = [TreeReading(model) for model in models]

    def after(*asked: Any) -> Tensor:
        laws = [each.laws(each.model.decoder.forward(*each.reads(*asked)), *asked) for each in readings]
        return torch.stack(laws) if len(laws) > 1 else laws[0]  # [K, M, V]

    draft = grow(structure, after, how, [model.strategy for model in models], generator)
    for each in readings:
        each.model.decoder.length = each.committed
    return draft


class TreeReading:
    """The calls of one model that drafts a tree."""

    def __init__(self, model: TreeModel) -> None:
        # Slots of the text in its cache, once it has read what is pending.
        self.model, self.committed = model, model.decoder.length + len(model.pending)
        self._lacking = torch.tensor(model.pending).to(model.decoder.device, non_blocking=True)

    def reads(self, tokens: Tensor, tree: Tree, nodes: Sequence[int]) -> tuple[Tensor, Tree]:
        """Return what the next call evaluates, for laws after nodes of the draft so far: ids beyond the model's own
        stand for no token; it reads its first one instead.
        """
        if len(tree) == 0:
            return self._lacking, chain_tree(len(self._lacking) - 1)
        self.model.decoder.length = self.committed - 1
        known = torch.where(tokens < self.model.decoder.vocab_size, tokens, 0)
        return torch.cat([self._lacking[-1:], known]), tree

    def laws(self, logits: Tensor, tokens: Tensor, tree: Tree, nodes: Sequence[int]) -> Tensor:
        """Return the laws after the nodes, by the logits of that call."""
        if len(tree) == 0:
            return self.model.laws(logits[-1:])
        wanted = index_on(logits.device, tuple(node + 1 for node in nodes))
        return self.model.laws(logits.index_select(0, wanted))


class Growing(NamedTuple):
    """The draft of one of several texts, at the beginning of a round: its model, with the decoder of its slot."""

    model: TreeModel
    structure: Structure
    generator: torch.Generator | None


def draft_trees(texts: Mapping[int, Growing], ragged: RaggedDecoder, how: How) -> dict[int, Draft]:
    """Draft for the texts of several slots as `draft_tree` does for one, with one call of the model for each level."""
    readings = {slot: TreeReading(text.model) for slot, text in texts.items()}

    def after(asked: Mapping[int, Asked]) -> dict[int, Tensor]:
        read = [readings[slot].reads(*wanted) for slot, wanted in asked.items()]
        calls = ragged.forward(list(asked), [tokens for tokens, _ in read], [tree for _, tree in read])
        return {
            slot: readings[slot].laws(logits, *wanted)
            for (slot, wanted), logits in zip(asked.items(), calls, strict=True)
        }

    growths = {slot: growing(text.structure, how, text.model.strategy, text.generator) for slot, text in texts.items()}
    drafts = grow_together(growths, after)
    for reading in readings.values():
        reading.model.decoder.length = reading.committed
    return drafts
