"""The contract of a structure: the shape and size of the draft that is asked for in a round."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from specdec.records import Tree
from specdec.registry import Registry

EVERY_STRUCTURE = frozenset({"chain", "rows", "tree", "dynamic"})


class Beam(NamedTuple):
    """A search for the most confident nodes, level by level."""

    branching: int  # children of a node that is expanded
    width: int  # nodes that are expanded in each level below the root


class Structure(ABC):
    """The shape and the largest size of a draft, and the answers to what a drafter asks about it. How the target
    evaluates a draft is the target's business.
    """

    name: ClassVar[str]
    # A draft is one continuation, drafted token by token, that may end early (`until`). One row of `rows` is not: it is
    # made as several rows would be.
    single: ClassVar[bool] = False
    fixed: ClassVar[bool] = True  # a full draft has the topology `tree`; false where nodes are merged, or chosen
    depth_name: ClassVar[str] = "depth"  # the depth in tables: a key of its config, or a word
    sized_by: ClassVar[str] = "the size of the structure"  # config keys to lower when a draft is too large, for errors

    gamma: int  # the depth offered in a full round: gamma of a chain, w of rows, the depth of a tree
    # A drafter that reports its confidence drafts no further token once it puts the chance that all drafted so far are
    # accepted below this; 0 always asks for the whole shape.
    threshold: float = 0.0
    rows: int | None = None  # the number of continuations that share nothing but the root, 1 for a chain; None: a tree
    # The search that chooses the nodes by the drafter's confidence; None where their places are given. Nodes of a beam
    # are the drafter's most likely tokens, point masses however it usually drafts: which of them are offered depends on
    # what they are, so they are no draws from a law.
    beam: Beam | None = None

    @property
    @abstractmethod
    def tree(self) -> Tree:
        """The topology of a full draft. A drafter may offer less."""

    @property
    def nodes(self) -> int:
        """The largest number of draft nodes in a round."""
        return len(self.tree)

    @property
    def label(self) -> str:
        """The size in words, for names of runs and titles."""
        return f"{self.name} of {self.nodes} nodes, depth {self.gamma}"

    @property
    def branches(self) -> int:
        """The largest number of paths from the root to a leaf: sequences of a batch that evaluates each path apart."""
        return max(1, len(self.tree.leaves))

    @abstractmethod
    def resized(self, gamma: int) -> "Structure":
        """Return the same shape with another depth: one step of a curve. A depth of 0 has no nodes; where it has no
        deeper levels, the whole shape.
        """

    def until(self, threshold: float) -> "Structure":
        """Return the same shape with an early end, once the chance of all drafted tokens falls below `threshold`.
        Raises ValueError: a structure that always has its whole shape.
        """
        raise ValueError(f"structure {self.name} has no early end: only one continuation can end at a threshold")

    def clamped(self, depth: int) -> "Structure":
        """Return the same shape, at most `depth` deep: nothing is offered beyond the end of the text."""
        return self if self.gamma <= depth else self.resized(depth)


structures: Registry[Structure] = Registry("structures", "structure")
