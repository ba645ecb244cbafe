"""Rows and trees drafted by a model, level by level, over the cache of its chain drafts."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specdec.models.decoder import Decoder
from specdec.records import Draft, Tree, chain_tree
from specdec.structures.base import Structure
from specdec.tree_building.siblings import How, grow, index_on


def draft_tree(
    decoder: Decoder,
    pending: Sequence[int],
    structure: Structure,
    how: How,
    laws: Callable[[Tensor], Tensor],
    strategy: str,
    generator: torch.Generator | None,
) -> Draft:
    """Draft with one call of the model for each level. The first call is over `pending`, the others over root and all
    nodes so far, from the root's place in the cache on, with the tree's mask. Nodes are evaluated again at every level,
    because the cache holds one sequence and none of the branches beside it.

    Afterwards the cache has the committed text and no node of the draft.

    Args:
        pending: committed tokens that the cache lacks, the root last.
        laws: (the model's logits [M, D]) -> laws over the target's tokens [M, V], or scores for ranked children.
    """
    committed = decoder.length + len(pending)

    def after(tokens: Tensor, tree: Tree, nodes: Sequence[int]) -> Tensor:
        if len(tree) == 0:
            return laws(decoder.forward(lacking, chain_tree(len(pending) - 1))[-1:])
        decoder.length = committed - 1
        # Ids beyond the model's own stand for no token; it reads its first one instead.
        read = torch.cat([lacking[-1:], torch.where(tokens < decoder.vocab_size, tokens, 0)])
        wanted = index_on(decoder.device, tuple(node + 1 for node in nodes))
        return laws(decoder.forward(read, tree).index_select(0, wanted))

    lacking = torch.tensor(pending, device=decoder.device)
    draft = grow(structure, after, how, strategy, generator)
    decoder.length = committed
    return draft
