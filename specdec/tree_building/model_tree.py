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


class TreeModel:
    """A model that drafts a tree, at the beginning of a round: the calls that it takes, and the laws that it gives."""

    def __init__(
        self, strategy: str, decoder: Decoder, pending: Sequence[int], laws: Callable[[Tensor], Tensor]
    ) -> None:
        """Make one of its name in `Source`, the committed tokens that its cache lacks, the root last, and what turns
        its logits [M, D] into laws [M, V] over the target's tokens, or into scores.
        """
        self.strategy, self.decoder, self._of_logits = strategy, decoder, laws
        # Slots of the text in the cache, once it has read what is pending.
        self.committed = decoder.length + len(pending)
        self._pending = torch.tensor(pending).to(decoder.device, non_blocking=True)

    def reads(self, tokens: Tensor, tree: Tree, nodes: Sequence[int]) -> tuple[Tensor, Tree]:
        """Return what the next call evaluates, for laws after nodes of the draft so far: ids beyond the model's own
        stand for no token; it reads its first one instead.
        """
        if len(tree) == 0:
            return self._pending, chain_tree(len(self._pending) - 1)
        self.decoder.length = self.committed - 1
        known = torch.where(tokens < self.decoder.vocab_size, tokens, 0)
        return torch.cat([self._pending[-1:], known]), tree

    def laws(self, logits: Tensor, tokens: Tensor, tree: Tree, nodes: Sequence[int]) -> Tensor:
        """Return the laws after the nodes, by the logits of that call."""
        if len(tree) == 0:
            return self._of_logits(logits[-1:])
        wanted = index_on(logits.device, tuple(node + 1 for node in nodes))
        return self._of_logits(logits.index_select(0, wanted))


def draft_tree(models: Sequence[TreeModel], structure: Structure, how: How, generator: torch.Generator | None) -> Draft:
    """Draft with one call of each model for each level (see `growing` for how several models share the siblings). The
    first call is over `pending`, the others over root and all nodes so far, from the root's place in the cache on, with
    the tree's mask. Nodes are evaluated again at every level, because the cache holds one sequence and none of the
    branches beside it. Afterwards each cache has the committed text and no node of the draft.
    """

    def after(*asked: Any) -> Tensor:
        laws = [model.laws(model.decoder.forward(*model.reads(*asked)), *asked) for model in models]
        return torch.stack(laws) if len(laws) > 1 else laws[0]  # [K, M, V]

    draft = grow(structure, after, how, [model.strategy for model in models], generator)
    for model in models:
        model.decoder.length = model.committed
    return draft


class Growing(NamedTuple):
    """The draft of one of several texts, at the beginning of a round: its model, with the decoder of its slot."""

    model: TreeModel
    structure: Structure
    generator: torch.Generator | None


def draft_trees(texts: Mapping[int, Growing], ragged: RaggedDecoder, how: How) -> dict[int, Draft]:
    """Draft for the texts of several slots as `draft_tree` does for one, with one call of the model for each level."""

    def after(asked: Mapping[int, Asked]) -> dict[int, Tensor]:
        read = [texts[slot].model.reads(*wanted) for slot, wanted in asked.items()]
        calls = ragged.forward(list(asked), [tokens for tokens, _ in read], [tree for _, tree in read])
        return {
            slot: texts[slot].model.laws(logits, *wanted)
            for (slot, wanted), logits in zip(asked.items(), calls, strict=True)
        }

    growths = {slot: growing(text.structure, how, text.model.strategy, text.generator) for slot, text in texts.items()}
    drafts = grow_together(growths, after)
    for text in texts.values():
        text.model.decoder.length = text.model.committed
    return drafts
