"""The contract of a structure: the shape and size of the draft that is asked for in a round."""

from abc import ABC, abstractmethod
from typing import ClassVar

from specdec.records import Tree
from specdec.registry import Registry


class Structure(ABC):
    """How large a draft may be. How the target evaluates it is the target's business.

    Attributes:
        threshold: a drafter that reports its confidence drafts no further token once it puts the chance that all
            drafted so far are accepted below this; 0 always asks for the whole shape.

    Class attributes:
        fixed: a full draft has the topology `tree`; false where it follows the tokens: nodes are merged, or chosen.
        ranked: nodes are the drafter's most likely tokens, point masses however it usually drafts: which of them are
            offered depends on what they are, so they are no draws from a law.
        depth_name: what the depth is called in tables: a key of its config, or a word.
        sized_by: the keys that make it smaller, for who asked for too much.
    """

    name: ClassVar[str]
    fixed: ClassVar[bool] = True
    ranked: ClassVar[bool] = False
    depth_name: ClassVar[str] = "depth"
    sized_by: ClassVar[str] = "the size of the structure"

    threshold: float = 0.0

    @property
    @abstractmethod
    def gamma(self) -> int:
        """The depth offered in a full round: gamma of a chain, w of rows, the depth of a tree."""

    @property
    @abstractmethod
    def tree(self) -> Tree:
        """The topology of a full draft; a drafter may offer less."""

    @property
    def nodes(self) -> int:
        """The largest number of draft nodes in a round."""
        return len(self.tree)

    @property
    def label(self) -> str:
        """Its size in words, for names of runs and titles."""
        return f"{self.name} of {self.nodes} nodes, depth {self.gamma}"

    @property
    def branches(self) -> int:
        """The largest number of paths from the root to a leaf: rows of a batch that evaluates each path apart."""
        return max(1, len(self.tree.leaves))

    @abstractmethod
    def resized(self, gamma: int) -> "Structure":
        """The same shape with another depth: one step of a curve."""

    def clamped(self, depth: int) -> "Structure":
        """The same shape, at most `depth` deep: nothing is offered beyond the end of the text."""
        return self if self.gamma <= depth else self.resized(depth)


structures: Registry[Structure] = Registry("structures", "structure")
