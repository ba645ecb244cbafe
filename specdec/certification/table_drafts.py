"""Drafts of a few tokens, made from a table of laws for each structure: what the exact checks enumerate."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from specdec.drafters.base import Drafter, DrafterCapabilities
from specdec.records import Draft, TextStart
from specdec.structures.base import Structure, structures
from specdec.tree_building.siblings import Asked, How, grow


def fill(structure: Structure, q: Tensor, root: int, generator: Any, way: How) -> Draft:
    """Fill a chain, rows or a tree level by level, the children of each node by its row of q."""

    def laws(asked: Asked) -> Tensor:
        return q[[root if node < 0 else int(asked.tokens[node]) for node in asked.nodes]]

    return grow(structure, laws, way, "table", generator)


FILL: dict[str, Callable[..., Draft]] = {
    "chain": fill,
    "rows": fill,
    "tree": fill,
    "dynamic": lambda structure, q, *how: fill(structure, q.log(), *how),  # the drafter's confidence is of logits
}
"""By the name of a structure, the function that fills it from a table. A structure without one cannot be enumerated."""

WAYS: dict[str, list[How]] = {
    "chain": ["independent", "ranked"],
    "rows": ["independent", "without_replacement", "ranked"],
    "tree": ["independent", "without_replacement", "ranked"],
    "dynamic": ["ranked"],
}
"""The ways in which nodes get their tokens: with repeats, all different, or the most likely ones as point masses."""


class TableDrafter(Drafter):
    """Fills any structure of `FILL` from a Markov law q [V, V]."""

    capabilities = DrafterCapabilities(fills=frozenset(FILL))

    def __init__(self, q: Tensor, way: How = "independent") -> None:
        self.q, self.way = q, way
        self.root = 0
        self.generator: torch.Generator | None = None

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self.root, self.generator = text.prompt[-1], text.generator

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        self.root = tokens[-1]

    def draft(self, structure: Structure) -> Draft:
        return FILL[structure.name](structure, self.q, self.root, self.generator, self.way)


def small_structure(name: str, gamma: int) -> Structure:
    """Return a small structure of `FILL`, `gamma` deep: two rows where they are long, two nodes at a tree's levels."""
    if name == "chain":
        return structures.build({"name": name, "gamma": gamma})
    if name == "rows":
        return structures.build({"name": name, "k": 3 if gamma == 1 else 2, "w": gamma, "budget": 100})
    if name == "dynamic":
        return structures.build({"name": name, "nodes": gamma + 2, "depth": gamma, "branching": 3, "beam": 2})
    parents = [-1, -1, *(2 * level for level in range(gamma - 1) for _ in range(2))]
    sizes = {"nodes": len(parents), "depth": gamma}
    return structures.build({"name": name, "parents": parents, "file": None, "accuracy": None, **sizes})
