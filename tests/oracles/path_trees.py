"""The token tree that accepts most where it is known which choices were right together.

The rank path of a position holds the rank of the text's next token among the drafter's choices, the rank of the token
after it among the choices behind it, and so on, for as long as there is one. A tree accepts there as many tokens as it
has nodes on that path, so that its mean accepted length is the sum over its nodes of the share of positions whose rank
path begins with the node's path, however the choices depend on one another. `trees.best_tree` has products of chances
in place of these shares, which are the same where the choices of one level do not depend on those of the others.

Proof that `tree_of_paths` finds the largest sum: shares never rise along a path, so where they do not rise with rank
either, the N nodes of the largest shares contain all parents and earlier siblings of theirs and are a tree, and no N
nodes have a larger sum. Elsewhere a choice needs earlier siblings that are worth less than itself (ranks have no gap).
So every node v has one node that it needs, its previous sibling or else its parent; two need v, its next sibling and
its first child, and T(v, n) = count(v) + max_k T(child, k) + T(sibling, n - 1 - k) is the best of n nodes from v on.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

from specdec.theory.arguments import count
from specdec.theory.trees import RankedTree

RankPath: TypeAlias = tuple[int, ...]


def tree_of_paths(paths: Sequence[RankPath], nodes: int) -> RankedTree:
    """Return the tree of at most `nodes` nodes with the largest mean accepted length over positions with these rank
    paths; O(P N^2) for P different beginnings of paths.

    Of equal trees the one whose nodes are less deep in all is taken, then the one of lower ranks. Nodes that accept
    nothing are left out.
    """
    most = int(count(nodes, "nodes"))
    counts = Counter(path[:length] for path in paths for length in range(1, len(path) + 1))
    known = {(*path[:-1], rank) for path in counts for rank in range(path[-1] + 1)}
    deepest, ranks = max(map(len, paths)), max((path[-1] + 1 for path in known), default=1)
    # A node's place among equals: no sum of ranks outweighs a level, no sum of both a position.
    per_level = ranks * most + 1
    per_position = (deepest * per_level + ranks) * most + 1
    best: dict[RankPath, list[int]] = {}  # T(v, n), n = 0 ... N
    below: dict[RankPath, list[int]] = {}  # nodes of the first child's share in T(v, n); -1: v is not taken
    nothing = [0] * (most + 1)
    for path in sorted(known, reverse=True):  # children and later siblings first
        child, sibling = (best.get(other, nothing) for other in _needing(path))
        worth = counts[path] * per_position - len(path) * per_level - path[-1]
        best[path], below[path] = [0], [-1]
        for size in range(1, most + 1):
            others = [child[k] + sibling[size - 1 - k] for k in range(size)]
            value = worth + max(others)
            best[path].append(max(value, 0))
            below[path].append(others.index(max(others)) if value > 0 else -1)
    taken: list[RankPath] = []
    waiting: list[tuple[RankPath, int]] = [((0,), most)]
    while waiting:
        path, size = waiting.pop()
        if path in below and below[path][size] >= 0:
            taken.append(path)
            share = below[path][size]
            waiting += zip(_needing(path), (share, size - 1 - share), strict=True)
    taken.sort(key=lambda path: (len(path), path))
    place = {(): -1} | {path: node for node, path in enumerate(taken)}
    tokens = 1 + sum(counts[path] for path in taken) / len(paths)
    return RankedTree(tuple(place[path[:-1]] for path in taken), tuple(path[-1] for path in taken), tokens)


def _needing(path: RankPath) -> tuple[RankPath, RankPath]:
    """Return the first child and the next sibling."""
    return (*path, 0), (*path[:-1], path[-1] + 1)
