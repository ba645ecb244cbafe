"""What drafters that look tokens up have in common: proposals are made of plain numbers, and are point masses."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from specdec.drafters.base import Drafter
from specdec.records import EMPTY, Draft, Source, Tree, chain_tree
from specdec.structures.base import Structure

if TYPE_CHECKING:
    from specdec.targets.base import Target


class Proposal(NamedTuple):
    """A draft before it becomes a tensor: what a replay of recorded text needs of it, many thousand times a second.

    Attributes:
        tokens: [N].
        tree: topology over the N nodes; siblings carry different tokens.
        source: [N] strategy and rank of each node.
    """

    tokens: tuple[int, ...]
    tree: Tree
    source: tuple[Source, ...]


NOTHING = Proposal((), chain_tree(0), ())


class Lookup(Drafter):
    """Deterministic drafts, a point mass on every node, out of tables and indexes on the host."""

    def __init__(self, target: "Target") -> None:
        self._device = target.device

    @abstractmethod
    def propose(self, structure: Structure) -> Proposal:
        """At most what `structure` asks for; `NOTHING` where there is nothing to propose."""

    def draft(self, structure: Structure) -> Draft:
        tokens, tree, source = self.propose(structure)
        return Draft(torch.tensor(tokens, device=self._device), tree, source=source) if tokens else EMPTY


def merged(rows: Iterable[tuple[Sequence[int], Source]]) -> Proposal:
    """Rows that share the root as one tree: a prefix that several begin with is one node, of the first row's source."""
    parents: list[int] = []
    tokens: list[int] = []
    source: list[Source] = []
    nodes: dict[tuple[int, int], int] = {}  # (parent, token) -> node
    for row, origin in rows:
        parent = -1
        for token in row:
            node = nodes.get((parent, token))
            if node is None:
                node = nodes[parent, token] = len(tokens)
                parents.append(parent)
                tokens.append(token)
                source.append(origin)
            parent = node
    return Proposal(tuple(tokens), Tree(tuple(parents)), tuple(source)) if tokens else NOTHING
