"""The tokens that heads choose after h_t: ranked choices for a given topology, and laws for a draft that is drawn.

Knows heads, tokens and topologies; neither targets nor how a law is standardised.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from specdec.heads.draft_heads import DraftHeads
from specdec.heads.network import Heads
from specdec.heads.one_pass import ParallelHeads
from specdec.records import Tree
from specdec.tree_building.siblings import index_on, sibling_ranks

Standardise = Callable[[Tensor], Tensor]
"""Turns logits [..., V] into laws, or into scores that rank children."""

After = Callable[[Tensor], Tensor]
"""`after(drafted)` returns the laws [B, M, V] of head k after M paths of tokens in each of B sequences [B, M, k], which
begin with the root."""


class Choices(Protocol):
    """Makes the proposals of one round for B sequences from their states h_t [B, D], as `Heads.contextual` returns
    them.
    """

    def first(self, states: Tensor, roots: Tensor, tree: Tree) -> Tensor:
        """Return tokens [B, N] for the nodes of a tree, the same one for all sequences: a node of rank j gets the
        (j+1)-th choice after its parent.

        Args:
            roots: [B] the tokens of the roots.
            tree: at most as deep as there are heads; no node has more children than there are tokens.
        """
        ...

    def laws(self, states: Tensor, depth: int, standardise: Standardise) -> After:
        """Return the function that gives the laws after paths, for drafts of at most `depth` levels."""
        ...


class IndependentChoices:
    """Choices of heads that read h_t alone (Medusa 2401.10774, 2.1): one pass gives all depths. All nodes of a depth
    have the same choices below them, so a tree is a part of the Cartesian product of the heads' choices.
    """

    def __init__(self, heads: Heads) -> None:
        self._logits = ParallelHeads(heads)

    def first(self, states: Tensor, roots: Tensor, tree: Tree) -> Tensor:
        width, places = _by_depth(tree)
        best = self._logits(states, tree.depth).topk(width, dim=-1).indices  # [depth, B, width]
        return best.transpose(0, 1).flatten(1).index_select(1, index_on(best.device, places))

    def laws(self, states: Tensor, depth: int, standardise: Standardise) -> After:
        rows = standardise(self._logits(states, depth))
        return lambda drafted: rows[drafted.shape[-1] - 1].unsqueeze(1).expand(-1, drafted.shape[1], -1)


class SequentialChoices:
    """Choices of grounded heads (Hydra 2402.05109, section 3), which also read the tokens of the path: one pass for
    each level, over all its nodes that have children.
    """

    def __init__(self, heads: DraftHeads) -> None:
        self._heads = heads

    def first(self, states: Tensor, roots: Tensor, tree: Tree) -> Tensor:
        levels, order = _by_level(tree)
        drafted, device = roots.view(-1, 1, 1), roots.device  # [B, M, k] the paths to nodes with children
        found: list[Tensor] = []  # [B, n] of each level
        for k, level in enumerate(levels, 1):
            if k > 1:
                above, inner = index_on(device, level.above), index_on(device, level.inner)
                last = found[-1].index_select(1, inner).unsqueeze(-1)
                drafted = torch.cat([drafted.index_select(1, above), last], -1)
            best = self._after(states, drafted).topk(level.width, dim=-1).indices  # [B, M, width]
            found.append(best.flatten(1).index_select(1, index_on(device, level.places)))
        return torch.cat(found, 1).index_select(1, index_on(device, order))

    def laws(self, states: Tensor, depth: int, standardise: Standardise) -> After:
        return lambda drafted: standardise(self._after(states, drafted))

    def _after(self, states: Tensor, drafted: Tensor) -> Tensor:
        """Return the logits [B, M, V] after M paths in each sequence [B, M, k]."""
        batch, paths, k = drafted.shape
        # A single sequence keeps its one state, which heads that read no tokens then pass on once, not for each path.
        state = states[0] if batch == 1 else states.repeat_interleave(paths, 0)
        logits = self._heads.logits(k, self._heads.draft_features(k, state, drafted.flatten(0, 1)))
        return logits.expand(batch * paths, -1).unflatten(0, (batch, paths))


def choices_of(heads: DraftHeads) -> Choices:
    """Return the choices of these heads; only our own network can be asked for all of its heads at once."""
    return IndependentChoices(heads) if isinstance(heads, Heads) and not heads.grounded else SequentialChoices(heads)


@lru_cache(maxsize=256)
def _by_depth(tree: Tree) -> tuple[int, tuple[int, ...]]:
    """Return the most siblings, W, and the place [N] of each node's token in a table [depth, W] of choices."""
    width = max(map(len, tree.children))
    ranks = zip(tree.depths, sibling_ranks(tree), strict=True)
    return width, tuple((depth - 1) * width + rank for depth, rank in ranks)


class _Level(NamedTuple):
    """The nodes of one depth, in the order of their parents, and then of the tree.

    Attributes:
        inner: [M] places of the parents among the nodes of the level above.
        above: [M] places of the parents' parents among the parents of the level above.
        width: the largest number of children of one parent, W.
        places: [n] place of every node's token in a table [M, W] of choices after each parent.
    """

    inner: tuple[int, ...]
    above: tuple[int, ...]
    width: int
    places: tuple[int, ...]


@lru_cache(maxsize=256)
def _by_level(tree: Tree) -> tuple[tuple[_Level, ...], tuple[int, ...]]:
    """Return the levels of a tree, and the place of each node of the tree when the levels are joined."""
    levels: list[_Level] = []
    order, nodes, grandparents = list[int](), [-1], {-1: 0}
    while parents := [node for node in nodes if tree.children[node + 1]]:
        families = [tree.children[parent + 1] for parent in parents]
        width = max(map(len, families))
        places = (place * width + rank for place, family in enumerate(families) for rank in range(len(family)))
        inner, above = map(nodes.index, parents), (grandparents[parent] for parent in parents)
        levels.append(_Level(tuple(inner), tuple(above), width, tuple(places)))
        nodes = [child for family in families for child in family]
        grandparents = {child: place for place, family in enumerate(families) for child in family}
        order += nodes
    return tuple(levels), tuple(sorted(range(len(order)), key=order.__getitem__))
