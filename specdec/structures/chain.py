"""One sequence of gamma tokens: the draft of Leviathan et al. 2211.17192."""

from specdec.config import DraftSize, Named, typed
from specdec.records import Tree, chain_tree
from specdec.structures.base import Structure, structures


@typed
class ChainConfig(Named):
    gamma: DraftSize


@structures.register("chain")
class Chain(Structure):
    name = "chain"
    single = True
    depth_name, sized_by = "gamma", "structure.gamma"
    rows = 1

    def __init__(self, gamma: int, threshold: float = 0.0) -> None:
        """Ask for `gamma` tokens, 0 before the last token of a text, which needs no draft."""
        self.gamma, self.threshold = gamma, threshold

    @classmethod
    def from_config(cls, config: ChainConfig) -> "Chain":
        return cls(config.gamma)

    @property
    def label(self) -> str:
        return f"gamma {self.gamma}"

    @property
    def tree(self) -> Tree:
        return chain_tree(self.gamma)

    def resized(self, gamma: int) -> "Chain":
        return Chain(gamma, self.threshold)

    def until(self, threshold: float) -> "Chain":
        return Chain(self.gamma, threshold)
