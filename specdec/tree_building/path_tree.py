"""A token tree that grows path by path, within limits. In plain numbers; knows neither tensors nor drafters."""

from collections.abc import Sequence

from specdec.records import Source, shared_tree
from specdec.tree_building.lookup_filling import NOTHING, Proposal


class PathTree:
    """Collects continuations of the root. A beginning that several of them share is one path, with the source of the
    first of them; one that does not fit into the limits is left out as a whole.
    """

    def __init__(self, nodes: int, depth: int, branches: int) -> None:
        """
        Args:
            nodes: the most nodes.
            depth: the most levels.
            branches: the most paths from the root to a leaf.
        """
        self._nodes, self._depth, self._branches = nodes, depth, branches
        self._parents: list[int] = []
        self._tokens: list[int] = []
        self._source: list[Source] = []
        self._children: dict[tuple[int, int], int] = {}  # (parent, token) -> node
        self._inner: set[int] = {-1}  # the root and the nodes with children

    def add(self, path: Sequence[int], source: Source) -> int | None:
        """Add a path of tokens from the root down; return its last node (-1 for an empty path), or None where it does
        not fit.
        """
        node, shared = -1, 0
        for token in path:
            child = self._children.get((node, token))
            if child is None:
                break
            node, shared = child, shared + 1
        new = len(path) - shared
        if new == 0:
            return node
        leaves = len(self._parents) - len(self._inner) + 1
        splits = node in self._inner
        if len(path) > self._depth or len(self._parents) + new > self._nodes or leaves + splits > self._branches:
            return None
        for token in path[shared:]:
            self._inner.add(node)
            self._children[node, token] = child = len(self._parents)
            self._parents.append(node)
            self._tokens.append(token)
            self._source.append(source)
            node = child
        return node

    def proposal(self) -> Proposal:
        """Return the tree so far as a draft in plain numbers."""
        if not self._tokens:
            return NOTHING
        return Proposal(tuple(self._tokens), shared_tree(tuple(self._parents)), tuple(self._source))
