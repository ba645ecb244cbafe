"""A tree by its expansion: how many children every node has at each depth (SpecInfer 2305.09781, section 3)."""

from math import prod
from typing import Annotated

from pydantic import Field

from specdec.config import DraftSize, Named, typed
from specdec.errors import UsageError
from specdec.records import shared_tree
from specdec.structures.base import structures
from specdec.structures.tree import TokenTree


@typed
class ExpansionConfig(Named):
    widths: Annotated[list[DraftSize], Field(min_length=1)]
    nodes: DraftSize


@structures.register("expansion")
class Expansion(TokenTree):
    """The tree <k_1, ..., k_m>: the root has k_1 children, each of these has k_2, and so on: a given tree, written
    shortly.
    """

    sized_by = "structure.widths"

    def __init__(self, widths: tuple[int, ...]) -> None:
        parents, level = list[int](), [-1]
        for width in widths:
            begin = len(parents)
            parents += [parent for parent in level for _ in range(width)]
            level = list(range(begin, len(parents)))
        super().__init__(shared_tree(tuple(parents)), len(parents))
        self._widths = widths

    @classmethod
    def from_config(cls, config: ExpansionConfig) -> "Expansion":  # type: ignore[override]
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
        return f"expansion {' x '.join(map(str, self._widths[: self.gamma]))}, {self.nodes} nodes"
