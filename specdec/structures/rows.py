"""k rows of width w that share the root: the batches of N-Grammys (2411.03786)."""

from functools import cached_property

from specdec.config import DraftSize, Named, typed
from specdec.errors import UsageError
from specdec.records import Tree, shared_tree
from specdec.structures.base import Structure, structures


@typed
class RowsConfig(Named):
    k: DraftSize
    w: DraftSize
    budget: DraftSize


@structures.register("rows")
class Rows(Structure):
    """k candidate continuations of w tokens each. Rows that begin with the same tokens share the nodes of these."""

    name = "rows"
    fixed = False
    depth_name, sized_by = "w", "structure.k or structure.w"

    def __init__(self, k: int, w: int) -> None:
        """Ask for k rows of w tokens, 0 before the last token of a text, which needs no draft."""
        self.k = self.rows = k
        self.gamma = w

    @classmethod
    def from_config(cls, config: RowsConfig) -> "Rows":
        evaluated = config.k * (config.w + 1)
        if evaluated > config.budget:
            raise UsageError(
                f"Bad value structure.k={config.k} structure.w={config.w}: k * (w + 1) = {evaluated} tokens to "
                f"evaluate in a round, more than structure.budget={config.budget}; lower them or raise the budget."
            )
        return cls(config.k, config.w)

    @property
    def label(self) -> str:
        return f"{self.k} rows of {self.gamma}"

    @property
    def nodes(self) -> int:
        return self.k * self.gamma  # without the tree: `Target.check_draft` asks before it is made

    @property
    def branches(self) -> int:
        return self.k if self.gamma else 1

    @cached_property
    def tree(self) -> Tree:
        return shared_tree(tuple(node - 1 if node % self.gamma else -1 for node in range(self.k * self.gamma)))

    def resized(self, gamma: int) -> "Rows":
        return Rows(self.k, gamma)
