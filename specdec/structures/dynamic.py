"""A tree whose topology follows the drafter's confidence, anew in each round (EAGLE-2 2406.16858, section 4)."""

from functools import lru_cache
from typing import Literal

from specdec.config import AtLeastOne, typed
from specdec.records import Tree
from specdec.structures.base import Beam, Structure, structures


@typed
class DynamicConfig:
    name: Literal["dynamic"]
    nodes: AtLeastOne
    depth: AtLeastOne
    branching: AtLeastOne
    beam: AtLeastOne


@structures.register("dynamic")
class Dynamic(Structure):
    """The most confident nodes of a beam search. A node's confidence is the product of its path's chances under the
    drafter. Level by level the `beam` most confident nodes are expanded by the `branching` most likely tokens each; of
    all that were drafted the `nodes` most confident are offered, which brings their ancestors along. The root is always
    expanded.
    """

    name = "dynamic"
    fixed = False
    sized_by = "structure.nodes"

    def __init__(self, nodes: int, depth: int, beam: Beam) -> None:
        """
        Args:
            nodes: the most that are offered.
            depth: may be 0: the last token of a text needs no draft.
        """
        self._beam = self.beam = beam
        self._most, self._depth = nodes, depth

    @classmethod
    def from_config(cls, config: DynamicConfig) -> "Dynamic":
        return cls(config.nodes, config.depth, Beam(config.branching, config.beam))

    @property
    def gamma(self) -> int:
        return min(self._depth, self._most)

    @property
    def nodes(self) -> int:
        """The most that are offered: `structure.nodes`, or all that are drafted."""
        return min(self._most, sum(self._drafted))

    @property
    def branches(self) -> int:
        """Every inner node is expanded once and has at most `branching` children, so that many leaves take some inner
        nodes.
        """
        return max(1, self.nodes - max(0, -(-self.nodes // self._beam.branching) - 1))

    @property
    def tree(self) -> Tree:
        """A draft of the most nodes and the deepest level; what a round offers has another topology and is no larger.

        A spine of first choices to the deepest level, then the remaining nodes as the search could have drafted them,
        shallow ones first.
        """
        return _fullest(self._drafted, self.nodes, self._beam.branching)

    def resized(self, gamma: int) -> "Dynamic":
        return Dynamic(self._most, gamma, self._beam)

    @property
    def _drafted(self) -> tuple[int, ...]:
        """Nodes drafted at each level."""
        sizes: list[int] = []
        for _ in range(self.gamma):
            sizes.append(self._beam.branching * (min(self._beam.width, sizes[-1]) if sizes else 1))
        return tuple(sizes)


@lru_cache(maxsize=64)
def _fullest(drafted: tuple[int, ...], nodes: int, branching: int) -> Tree:
    """`drafted` nodes a level at most, `nodes` in all, `branching` children of one parent at most."""
    spare = nodes - len(drafted)  # beside the spine
    parents: list[int] = []
    above = [-1]
    for size in drafted:
        width = 1 + min(size - 1, spare)
        spare -= width - 1
        level = range(len(parents), len(parents) + width)
        parents += [above[place // branching] for place in range(width)]
        above = list(level)
    return Tree(tuple(parents))
