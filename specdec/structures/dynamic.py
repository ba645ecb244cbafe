"""A tree whose topology follows the drafter's confidence, a new one in each round (EAGLE-2 2406.16858, section 4)."""

from functools import cached_property

from specdec.config import DraftSize, Named, typed
from specdec.records import Tree, shared_tree
from specdec.structures.base import Beam, Structure, structures


@typed
class DynamicConfig(Named):
    nodes: DraftSize
    depth: DraftSize
    branching: DraftSize
    beam: DraftSize


@structures.register("dynamic")
class Dynamic(Structure):
    """The most confident nodes of a beam search. A node's confidence is the product of the chances, under the drafter,
    of the tokens on its path. Level by level the `beam` most confident nodes are expanded, each by its `branching` most
    likely tokens; the root is always expanded. Of all drafted nodes the `nodes` most confident are offered. Their
    ancestors are among them, because a node is never more confident than its parent.
    """

    name = "dynamic"
    fixed = False
    sized_by = "structure.nodes"

    def __init__(self, nodes: int, depth: int, beam: Beam) -> None:
        """Offer at most `nodes` nodes and `depth` levels, 0 before the last token of a text, which needs no draft."""
        self._beam = self.beam = beam
        self._most, self.gamma = nodes, min(depth, nodes)

    @classmethod
    def from_config(cls, config: DynamicConfig) -> "Dynamic":
        return cls(config.nodes, config.depth, Beam(config.branching, config.beam))

    @property
    def nodes(self) -> int:
        """The most nodes that are offered: `structure.nodes`, or all drafted ones where these are fewer."""
        return min(self._most, sum(self._drafted))

    @property
    def branches(self) -> int:
        """The largest number of leaves: every inner node has at most `branching` children, so n nodes have at least
        n / branching parents, the root among them.
        """
        return max(1, self.nodes - max(0, -(-self.nodes // self._beam.branching) - 1))

    @cached_property
    def tree(self) -> Tree:
        """A draft with the most nodes and the deepest level. A round offers another topology, which is no larger.
        It has a chain of first choices down to the deepest level; the other nodes stand where the search could have
        drafted them, from the top level down.
        """
        spare = self.nodes - self.gamma  # beside the chain of first choices
        parents: list[int] = []
        above = [-1]
        for size in self._drafted:
            width = 1 + min(size - 1, spare)
            spare -= width - 1
            parents += [above[place // self._beam.branching] for place in range(width)]
            above = list(range(len(parents) - width, len(parents)))
        return shared_tree(tuple(parents))

    def resized(self, gamma: int) -> "Dynamic":
        return Dynamic(self._most, gamma, self._beam)

    @property
    def _drafted(self) -> list[int]:
        """The number of nodes that the search drafts at each level."""
        sizes: list[int] = []
        for _ in range(self.gamma):
            sizes.append(self._beam.branching * (min(self._beam.width, sizes[-1]) if sizes else 1))
        return sizes
