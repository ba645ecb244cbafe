"""Trees of tokens that were looked up, in plain numbers, because a replay makes many thousand a second."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from math import inf
from typing import NamedTuple, TypeVar

from specdec.records import Source, Tree, chain_tree, parents_among, shared_tree
from specdec.structures.base import Structure

Place = TypeVar("Place")


class Proposal(NamedTuple):
    """A draft of N nodes in plain numbers, before it becomes a tensor; a replay of recorded text needs no more."""

    tokens: tuple[int, ...]
    tree: Tree
    source: tuple[Source, ...]


NOTHING = Proposal((), chain_tree(0), ())


def copied(row: tuple[int, ...], strategy: str) -> Proposal:
    """Return a chain of tokens."""
    return Proposal(row, chain_tree(len(row)), (Source(strategy, 0),) * len(row)) if row else NOTHING


def merged(rows: Iterable[tuple[Sequence[int], Source]]) -> Proposal:
    """Return rows that share the root as one tree, see `PathTree`."""
    tree = PathTree()
    for row, origin in rows:
        tree.add(row, origin)
    return tree.proposal()


def filled(tree: Tree, root: Place, best: Callable[[Place, int], Iterable[tuple[int, str, Place]]]) -> Proposal:
    """Return a topology with the best candidates at every node. A node without a candidate is left out, with all nodes
    below it. `best(place, count)` gives at most `count` different tokens to follow there, best first, each with its
    strategy and with the place that it leads to.
    """
    chosen: dict[int, tuple[int, Source]] = {}
    places = [(-1, root)]  # of the nodes that were chosen; grows while they are filled
    for node, place in places:
        children = tree.children[node + 1]
        if children:
            candidates = best(place, len(children))
            for rank, (child, (token, strategy, after)) in enumerate(zip(children, candidates, strict=False)):
                chosen[child] = token, Source(strategy, rank)
                places.append((child, after))
    if not chosen:
        return NOTHING
    kept = sorted(chosen)
    if len(kept) < len(tree):
        tree = shared_tree(parents_among(tree.parents, kept))
    tokens, source = zip(*(chosen[node] for node in kept), strict=True)
    return Proposal(tokens, tree, source)


class PathTree:
    """Collects continuations of the root. A beginning that several of them share is one path, with the source of the
    first of them; one that does not fit into the limits is left out as a whole.
    """

    def __init__(self, nodes: float = inf, depth: float = inf, branches: float = inf) -> None:
        """Make an empty tree, with limits of its nodes, its levels, and its paths from the root to a leaf."""
        self._nodes, self._depth, self._branches = nodes, depth, branches
        self._added: list[tuple[int, int, Source]] = []  # parent, token and source of each node
        self._children: dict[tuple[int, int], int] = {}  # (parent, token) -> node
        self._inner: set[int] = {-1}  # the root and the nodes with children

    def add(self, path: Sequence[int], source: Source) -> int | None:
        """Add a path below the root; return its last node (-1 for an empty path), or None where it does not fit."""
        node, shared = -1, 0
        for token in path:
            child = self._children.get((node, token))
            if child is None:
                break
            node, shared = child, shared + 1
        new = len(path) - shared
        if new == 0:
            return node
        leaves = len(self._added) - len(self._inner) + 1
        splits = node in self._inner
        if len(path) > self._depth or len(self._added) + new > self._nodes or leaves + splits > self._branches:
            return None
        for token in path[shared:]:
            self._inner.add(node)
            self._children[node, token] = child = len(self._added)
            self._added.append((node, token, source))
            node = child
        return node

    def proposal(self) -> Proposal:
        """Return the tree so far as a draft in plain numbers."""
        if not self._added:
            return NOTHING
        parents, tokens, source = zip(*self._added, strict=True)
        return Proposal(tokens, shared_tree(parents), source)


_ROOT = 0


class ContinuationTrie:
    """The beginnings of some continuations; each node counts the continuations that pass through it."""

    def __init__(self, rows: Iterable[Sequence[int]], *, counted: bool) -> None:
        """Make a trie; where it is `counted`, rows and children are ranked by counts. Equals, and otherwise all, are in
        the order in which the continuations came.
        """
        self._counted = counted
        self._children: list[dict[int, int]] = [{}]  # of each node: token -> child
        self._counts = [0]
        self._ends: dict[int, Sequence[int]] = {}  # node -> the continuation that ends there
        children, counts = self._children, self._counts
        for row in rows:
            node = _ROOT
            for token in row:
                child = children[node].get(token)
                if child is None:
                    child = children[node][token] = len(counts)
                    children.append({})
                    counts.append(0)
                counts[child] += 1
                node = child
            self._ends.setdefault(node, row)

    def rows(self, count: int) -> list[Sequence[int]]:
        """Return at most `count` different continuations, none the beginning of another. Counted ones are ranked by the
        sum of the counts of their nodes: were all equally likely, of two rows the first has more accepted on average.
        """
        found = [row for node, row in self._ends.items() if not self._children[node] and row]
        if self._counted and len(found) > 1:

            def total(row: Sequence[int]) -> int:
                node, counts = _ROOT, 0
                for token in row:
                    node = self._children[node][token]
                    counts += self._counts[node]
                return counts

            found.sort(key=total, reverse=True)
        return found[:count]

    def proposal(self, structure: Structure, strategy: str) -> Proposal:
        """Return what a structure takes: the k best rows, tokens of each rank in a tree, or a beam's common nodes."""
        if structure.rows is not None:
            rows = self.rows(structure.rows)
            return merged((row, Source(strategy, rank)) for rank, row in enumerate(rows))
        if structure.beam is not None:
            return self._most_common(structure, strategy)

        def best(node: int, count: int) -> Iterator[tuple[int, str, int]]:
            return ((token, strategy, child) for token, child in islice(self._ranked(node), count))

        return filled(structure.tree, _ROOT, best)

    def _ranked(self, node: int) -> Iterable[tuple[int, int]]:
        """Return the tokens after a node with their nodes, best first."""
        children = self._children[node].items()
        return sorted(children, key=lambda item: self._counts[item[1]], reverse=True) if self._counted else children

    def _most_common(self, structure: Structure, strategy: str) -> Proposal:
        """Search as `Beam` says, with the share of the continuations as confidence."""
        beam = structure.beam
        assert beam is not None
        drafted: list[tuple[int, int, int, int]] = []  # node, its parent, its token, its rank among its siblings
        level = [_ROOT]
        for _ in range(structure.gamma):
            expanded = sorted(level, key=self._counts.__getitem__, reverse=True)[: beam.width]
            level = []
            for parent in expanded:
                for rank, (token, child) in enumerate(islice(self._ranked(parent), beam.branching)):
                    drafted.append((child, parent, token, rank))
                    level.append(child)
        # A parent counts no less than its children and was drafted before them, so that it stays before them.
        drafted.sort(key=lambda item: self._counts[item[0]], reverse=True)
        kept = drafted[: structure.nodes]
        if not kept:
            return NOTHING
        nodes, parents, tokens, ranks = zip(*kept, strict=True)
        number = {_ROOT: -1} | {node: place for place, node in enumerate(nodes)}
        tree = shared_tree(tuple(number[parent] for parent in parents))
        return Proposal(tokens, tree, tuple(Source(strategy, rank) for rank in ranks))
