"""Several continuations of one text as a tree in which shared beginnings are counted, and what a structure takes of it.

All in plain numbers. Knows neither tensors nor drafters, nor where the continuations come from.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from specdec.records import Source, shared_tree
from specdec.structures.base import Structure
from specdec.tree_building.lookup_filling import NOTHING, Proposal, filled, merged

_ROOT = 0


class ContinuationTrie:
    """The beginnings of some continuations; each node counts the continuations that pass through it.

    Attributes:
        counted: rows and children are ranked by counts; equals, and all where this is false, are in the order in which
            the continuations came.
    """

    def __init__(self, rows: Iterable[Sequence[int]], *, counted: bool) -> None:
        self.counted = counted
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
        sum of the counts of their nodes: were each as likely as another, of two rows the first has more tokens accepted
        on average.
        """
        found = [row for node, row in self._ends.items() if not self._children[node] and row]
        if self.counted and len(found) > 1:

            def total(row: Sequence[int]) -> int:
                node, counts = _ROOT, 0
                for token in row:
                    node = self._children[node][token]
                    counts += self._counts[node]
                return counts

            found.sort(key=total, reverse=True)
        return found[:count]

    def proposal(self, structure: Structure, strategy: str) -> Proposal:
        """Return what a structure takes: the best row for a chain, its k best rows, the tokens of each rank in a tree,
        or the most common nodes of a beam.

        Args:
            strategy: the name in `Source`.
        """
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
        return sorted(children, key=lambda item: self._counts[item[1]], reverse=True) if self.counted else children

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
        number = {_ROOT: -1} | {node: place for place, (node, _, _, _) in enumerate(kept)}
        return Proposal(
            tuple(token for _, _, token, _ in kept),
            shared_tree(tuple(number[parent] for _, parent, _, _ in kept)),
            tuple(Source(strategy, rank) for _, _, _, rank in kept),
        )
