"""A tree by its expansion: how many children every node has at each depth (SpecInfer 2305.09781, section 3)."""

from functools import cached_property
from math import prod
from typing import Annotated

from pydantic import Field

from specdec.config import DraftSize, Named, typed
from specdec.errors import UsageError
from specdec.records import Tree, shared_tree
from specdec.structures.base import Structure, structures


@typed
class ExpansionConfig(Named):
    widths: Annotated[list[DraftSize], Field(min_length=1)]
    nodes: DraftSize


@structures.register("expansion")
class Expansion(Structure):
    """The tree <k_1, ..., k_m>: the root has k_1 children, each of these has k_2, and so on. Whatever fills or judges
    trees takes it: it is one of them, written shortly.
    """

    name = "tree"
    sized_by = "structure.widths"

    def __init__(self, widths: tuple[int, ...], depth: int | None = None) -> None:
        """Ask for the first `depth` levels of the tree of these widths, None for all."""
        self._widths = widths
        self._asked = widths[:depth]
        self.gamma = len(self._asked)

    @classmethod
    def from_config(cls, config: ExpansionConfig) -> "Expansion":
        widths = tuple(config.widths)
        nodes = sum(prod(widths[:level]) for level in range(1, len(widths) + 1))
        if nodes > config.nodes:
            raise UsageError(
                f"Bad value structure.widths={list(widths)}: the tree has {nodes} nodes, more than "
                f"structure.nodes={config.nodes}; lower the widths or raise that limit."
            )
        return cls(widths)

    @property
    def label(self) -> str:
        return f"expansion {' x '.join(map(str, self._asked))}, {self.nodes} nodes"

    @cached_property
    def tree(self) -> Tree:
        parents, level = list[int](), [-1]
        for width in self._asked:
            begin = len(parents)
            parents += [parent for parent in level for _ in range(width)]
            level = list(range(begin, len(parents)))
        return shared_tree(tuple(parents))

    def resized(self, gamma: int) -> "Expansion":
        """Return the first `gamma` levels of the configured tree, all of them where it has fewer."""
        return Expansion(self._widths, gamma)
