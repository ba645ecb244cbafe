"""Token trees under positional acceptance (theory.md 3.1 and 3.2): expected tokens, and the tree that has most.

The child of rank j of an accepted node is accepted with chance a_j, or a_{d,j} at depth d, whatever happened before; at
most one child of a node is accepted. So the worth of a node is the product of chances along its path, and the expected
tokens of a round are the sum over all nodes, the root counting 1 (Sequoia 2402.12374, 3.4; Medusa 2401.10774, 2.3.3).

Conventions: rank 0 is the drafter's first choice; `nodes` never counts the root; children of the root have depth 1.
`accuracy` is one vector a_j for every depth, or a list of vectors a_{d,j}, one for each depth that the tree may have.
The children of a node have ranks 0, 1, ... without a gap, as drawing without replacement demands: a rank of low
accuracy is left out with all later ranks, or kept as a leaf where a later rank is worth both. ValueError for an
accuracy outside [0, 1] and for counts that are not whole numbers.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import fsum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from specdec.theory.arguments import FloatArray, count, nonnegative, positive, probability

Accuracy: TypeAlias = Sequence[float] | Sequence[Sequence[float]] | FloatArray


@dataclass(frozen=True)
class RankedTree:
    """A topology in level order: by depth, then by parent, then by rank."""

    parents: tuple[int, ...]  # [N] parent of each node, -1 for the root
    ranks: tuple[int, ...]  # [N] rank of each node among its siblings, 0 for the drafter's first choice
    tokens: float  # expected tokens of a round, the root's included

    def __len__(self) -> int:
        return len(self.parents)


def expected_tokens(parents: Sequence[int], ranks: Sequence[int], accuracy: Accuracy) -> float:
    """Return the expected tokens of a round: the sum of f(v) over all nodes [N] and the root, f(v) the product of
    accuracies along the path. ValueError for a parent that does not precede its child, and for a node whose depth or
    rank has no accuracy.
    """
    if len(parents) != len(ranks):
        raise ValueError(f"parents and ranks differ in length: {len(parents)} and {len(ranks)}")
    vectors = _by_depth(accuracy, len(parents))
    depths: list[int] = []
    worth: list[float] = []
    for node, (parent, rank) in enumerate(zip(parents, ranks, strict=True)):
        if not -1 <= parent < node:
            raise ValueError(f"node {node} has parent {parent}: parents must precede their children")
        depth = 1 if parent < 0 else depths[parent] + 1
        if depth > len(vectors) or not 0 <= rank < len(vectors[depth - 1]):
            raise ValueError(f"node {node} has rank {rank} at depth {depth}, for which accuracy holds no number")
        depths.append(depth)
        worth.append(float(vectors[depth - 1][rank]) * (1.0 if parent < 0 else worth[parent]))
    return fsum([1.0, *worth])


def best_tree(accuracy: Accuracy, nodes: int, depth: int | None = None) -> RankedTree:
    """Return the tree with the most expected tokens among those of at most `nodes` nodes and `depth` levels (None:
    any), without nodes that are worth nothing. The heap finds it where accuracy never increases with rank, else the
    dynamic program.
    """
    if _falls_with_rank(_limited(accuracy, nodes, depth)):
        return tree_by_heap(accuracy, nodes, depth)
    return tree_by_program(accuracy, nodes, depth)


def tree_by_heap(accuracy: Accuracy, nodes: int, depth: int | None = None) -> RankedTree:
    """Take the `nodes` largest f(v), each after its parent and its earlier siblings; O(N log N). This is the best tree
    where no vector of accuracy increases with rank; elsewhere it need not be.
    """
    paths, worth = _largest(_limited(accuracy, nodes, depth), nodes)
    order = sorted(paths, key=lambda path: (len(path), path))  # by depth, then by parent, then by rank
    place = {(): -1} | {path: node for node, path in enumerate(order)}
    parents = tuple(place[path[:-1]] for path in order)
    return RankedTree(parents, tuple(path[-1] for path in order), fsum([1.0, *worth]))


def tree_by_program(accuracy: Accuracy, nodes: int, depth: int | None = None) -> RankedTree:
    """Find the best tree for any accuracy: T[n, b] = max_m T[n-m, b-1] + a_b max_j T[m, j] (Sequoia).

    T[n, b] is the worth of a node with at most n nodes in its subtree, itself included, and children of the first b
    ranks; one table for each depth. O(D J N^2) for J ranks. Of equal trees, one whose nodes have few children is taken.
    """
    vectors = _limited(accuracy, nodes, depth)
    tables = _tables(vectors, nodes)
    parents: list[int] = []
    ranks: list[int] = []
    waiting = deque([(-1, 0, nodes + 1)])  # node, its depth, most nodes of its subtree with the node itself
    while waiting:
        parent, level, size = waiting.popleft()
        for rank, share in enumerate(tables[level].shares(size) if level < len(tables) else ()):
            waiting.append((len(parents), level + 1, share))
            parents.append(parent)
            ranks.append(rank)
    return RankedTree(tuple(parents), tuple(ranks), expected_tokens(parents, ranks, accuracy))


def tokens_by_nodes(accuracy: Accuracy, nodes: int, depth: int | None = None) -> FloatArray:
    """Return the most expected tokens G(n, D) [nodes + 1] with up to n = 0 ... `nodes` nodes and D = `depth` levels."""
    vectors = _limited(accuracy, nodes, depth)
    if not vectors:
        return np.ones(nodes + 1)
    if not _falls_with_rank(vectors):
        return _tables(vectors, nodes)[0].worth[1:]
    gains = np.zeros(nodes + 1)
    _, worth = _largest(vectors, nodes)
    gains[1 : len(worth) + 1] = worth
    return 1 + np.cumsum(gains)


def choose_tree(
    accuracy: Accuracy, seconds: Callable[[int], float], draft_seconds: float, nodes_max: int, depth_max: int
) -> RankedTree:
    """Return the tree that maximises G(n, D) / (t(n) + D c) over n <= `nodes_max` and D <= `depth_max` (hardware-aware
    Sequoia); an empty one means that drafting does not pay.

    Of equal rates the shallower tree wins, then the smaller one. seconds: t, the time of a target call on a number of
    tokens, 1 (the root alone) to nodes_max + 1; draft_seconds: c, the time that the drafter takes for one level.
    """
    widest, deepest = int(count(nodes_max, "nodes_max")), int(count(depth_max, "depth_max"))
    calls = positive([seconds(tokens) for tokens in range(1, widest + 2)], "seconds")
    level = float(nonnegative(draft_seconds, "draft_seconds"))
    best_rate, best_nodes, best_depth = 1 / float(calls[0]), 0, 0
    for depth in range(1, deepest + 1):
        tokens = tokens_by_nodes(accuracy, widest, depth)
        # A node that adds nothing is left out of the tree, so a size that counts it does not exist.
        rates = np.where(np.diff(tokens, prepend=0.0) > 0, tokens / (calls + depth * level), 0.0)
        nodes = int(np.argmax(rates))
        if rates[nodes] > best_rate:
            best_rate, best_nodes, best_depth = float(rates[nodes]), nodes, depth
    return best_tree(accuracy, best_nodes, best_depth)


def _by_depth(accuracy: Accuracy, depth: int) -> list[FloatArray]:
    """Return the vectors of depths 1 to `depth`, or of fewer depths where a list by depth is shorter."""
    kinds = {np.ndim(item) for item in accuracy}
    if kinds == {0}:
        return [probability(accuracy, "accuracy")] * depth
    if kinds != {1} or any(len(vector) == 0 for vector in accuracy):  # type: ignore[arg-type]
        raise ValueError(f"accuracy must be one vector over ranks, or a list of them by depth, got {accuracy!r}")
    return [probability(vector, "accuracy") for vector in accuracy][:depth]


def _limited(accuracy: Accuracy, nodes: int, depth: int | None) -> list[FloatArray]:
    """Return the vectors of the depths that a tree of at most `nodes` nodes and `depth` levels can have."""
    most = int(count(nodes, "nodes"))
    return _by_depth(accuracy, most if depth is None else min(most, int(count(depth, "depth"))))


def _falls_with_rank(vectors: Sequence[FloatArray]) -> bool:
    return all(bool(np.all(np.diff(vector) <= 0)) for vector in vectors)


def _largest(vectors: Sequence[FloatArray], nodes: int) -> tuple[list[tuple[int, ...]], list[float]]:
    """Return the ranks on the path to each of the nodes with the largest worth above 0, and worths, largest first."""
    paths = list[tuple[int, ...]]()
    worth: list[float] = []
    heap: list[tuple[float, int, int, int]] = []  # (-worth, depth, parent, rank): the shallower of equals first

    def offer(depth: int, parent: int, rank: int) -> None:
        if depth <= len(vectors) and rank < len(vectors[depth - 1]) and vectors[depth - 1][rank] > 0:
            value = float(vectors[depth - 1][rank]) * (1.0 if parent < 0 else worth[parent])
            heappush(heap, (-value, depth, parent, rank))

    offer(1, -1, 0)
    while heap and len(paths) < nodes:
        negative, depth, parent, rank = heappop(heap)
        paths.append((*(paths[parent] if depth > 1 else ()), rank))
        worth.append(-negative)
        offer(depth + 1, len(paths) - 1, 0)
        offer(depth, parent, rank + 1)
    return paths, worth


@dataclass(frozen=True)
class _Table:
    """The dynamic program at one depth. Sizes count the node itself; entry 0 is impossible."""

    worth: FloatArray  # [N + 2] max_b T[n, b]
    children: NDArray[np.int64]  # [N + 2] the first b that reaches it
    last: NDArray[np.int64]  # [J, N + 2] size of the subtree of child b in T[n, b], b = 1 ... J

    def shares(self, size: int) -> list[int]:
        """Return the sizes of the children's subtrees, in the order of their ranks."""
        sizes: list[int] = []
        for b in range(int(self.children[size]), 0, -1):
            sizes.append(int(self.last[b - 1, size]))
            size -= sizes[-1]
        return sizes[::-1]


def _tables(vectors: Sequence[FloatArray], nodes: int) -> list[_Table]:
    """Return one table for each depth 0 (the root) ... D - 1; a node at depth D has no children."""
    below = np.append(-np.inf, np.ones(nodes + 1))
    sizes = np.arange(nodes + 2)
    rest = np.maximum(sizes[:, None] - sizes[None, :], 0)  # n - m [n, m]
    tables: list[_Table] = []
    for vector in reversed(vectors):
        worth = [np.append(-np.inf, np.ones(nodes + 1))]  # T[n, 0]
        last: list[NDArray[np.int64]] = []
        for chance in vector:
            gain = np.append(-np.inf, chance * below[1:])
            scores = worth[-1][rest] + gain  # [n, m]
            last.append(np.argmax(scores, axis=1))
            worth.append(scores[sizes, last[-1]])
        below = np.max(worth, axis=0)
        tables.append(_Table(below, np.argmax(worth, axis=0), np.array(last)))
    return tables[::-1]
