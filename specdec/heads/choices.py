"""The tokens that heads choose after h_t: ranked choices for a given topology, and laws for a draft that is drawn."""

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec.heads.draft_heads import DraftHeads
from specdec.heads.network import Heads, MlpHead
from specdec.records import Tree
from specdec.tree_building.siblings import index_on, sibling_ranks

Standardise = Callable[[Tensor], Tensor]  # turns logits [..., V] into laws, or into scores that rank children

After = Callable[[Tensor], Tensor]
"""`after(drafted)` returns the laws [B, M, V] of head k after M paths of tokens in each of B sequences [B, M, k], which
begin with the root."""


class StackedLayer:
    """A copy of one linear layer of all K heads. On a CPU a product with one vector takes as long as its start-up: four
    small ones cost four times as much as one.
    """

    def __init__(self, layers: list[nn.Linear]) -> None:
        self.weight = torch.stack([layer.weight.detach().T for layer in layers])  # [K, in, out]
        self.bias = torch.stack([layer.bias.detach().unsqueeze(0) for layer in layers])  # [K, 1, out]

    def __call__(self, x: Tensor) -> Tensor:
        """Return [k, B, out] for inputs [k, B, in] of the first k heads."""
        return torch.baddbmm(self.bias[: len(x)], x, self.weight[: len(x)])


class IndependentChoices:
    """Choices of heads that read h_t alone (Medusa 2401.10774, 2.1): one pass gives all depths. All nodes of a depth
    have the same choices below them, so a tree is a part of the Cartesian product of the heads' choices.

    States h_t are [B, D], of B sequences, as `Heads.contextual` returns them.
    """

    def __init__(self, heads: Heads) -> None:
        self._heads = heads
        self._blocks: list[tuple[StackedLayer, StackedLayer | None]] = []
        for blocks in zip(*(head.blocks for head in heads.heads if isinstance(head, MlpHead)), strict=True):
            outer = [block.outer for block in blocks if block.outer is not None]
            inner = StackedLayer([block.inner for block in blocks])
            self._blocks.append((inner, StackedLayer(outer) if outer else None))

    def logits(self, states: Tensor, count: int) -> Tensor:
        """Return the logits [count, B, V] of the first `count` heads; the other heads are not computed."""
        x = states.expand(count, -1, -1)
        for inner, outer in self._blocks:
            hidden = F.silu(inner(x))
            x = x + (hidden if outer is None else outer(hidden))
        if self._heads.config.output == "own":
            return torch.stack([self._heads.logits(k, x[k - 1]) for k in range(1, count + 1)])
        return self._heads.logits(1, x)

    def first(self, states: Tensor, roots: Tensor, tree: Tree) -> Tensor:
        """Return tokens [B, N] for the nodes of a tree, the same one for all sequences: a node of rank j gets the
        (j+1)-th choice after its parent.

        Args:
            roots: [B] the tokens of the roots.
            tree: at most as deep as there are heads; no node has more children than there are tokens.
        """
        width, places = _by_depth(tree)
        best = self.logits(states, tree.depth).topk(width, dim=-1).indices  # [depth, B, width]
        return best.transpose(0, 1).flatten(1).index_select(1, index_on(best.device, places))

    def laws(self, states: Tensor, depth: int, standardise: Standardise) -> After:
        """Return the function that gives the laws after paths, for drafts of at most `depth` levels."""
        rows = standardise(self.logits(states, depth))
        return lambda drafted: rows[drafted.shape[-1] - 1].unsqueeze(1).expand(-1, drafted.shape[1], -1)


class SequentialChoices:
    """Choices of grounded heads (Hydra 2402.05109, section 3), which also read the tokens of the path: one pass for
    each level, over all its nodes that have children. For the methods see `IndependentChoices`.
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


@lru_cache(maxsize=256)
def _by_depth(tree: Tree) -> tuple[int, tuple[int, ...]]:
    """Return the most siblings, W, and the place [N] of each node's token in a table [depth, W] of choices."""
    width = max(map(len, tree.children))
    ranks = zip(tree.depths, sibling_ranks(tree), strict=True)
    return width, tuple((depth - 1) * width + rank for depth, rank in ranks)


class _Level(NamedTuple):
    """The nodes of one depth, in the order of their parents, and then of the tree."""

    inner: tuple[int, ...]  # [M] places of the parents among the nodes of the level above
    above: tuple[int, ...]  # [M] places of the parents' parents among the parents of the level above
    width: int  # the largest number of children of one parent, W
    places: tuple[int, ...]  # [n] place of every node's token in a table [M, W] of choices after each parent


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
