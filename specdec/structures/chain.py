"""One sequence of gamma tokens: the draft of Leviathan et al. 2211.17192."""

from typing import Literal

from specdec.config import AtLeastOne, typed
from specdec.records import Tree, chain_tree
from specdec.structures.base import Structure, structures


@typed
class ChainConfig:
    name: Literal["chain"]
    gamma: AtLeastOne


@structures.register("chain")
class Chain(Structure):
    name = "chain"
    depth_name, sized_by = "gamma", "structure.gamma"

    def __init__(self, config: ChainConfig) -> None:
        self._gamma = config.gamma

    @property
    def gamma(self) -> int:
        return self._gamma

    @property
    def label(self) -> str:
        return f"gamma {self._gamma}"

    @property
    def tree(self) -> Tree:
        return chain_tree(self._gamma)

    def resized(self, gamma: int) -> "Chain":
        return self._with(gamma, self.threshold)  # 0 is possible here: the last token of a text needs no draft

    def until(self, threshold: float) -> "Chain":
        """A chain of at most gamma tokens that ends once their chance falls below `threshold` (see `Structure`)."""
        return self._with(self._gamma, threshold)

    def _with(self, gamma: int, threshold: float) -> "Chain":
        chain = Chain.__new__(Chain)
        chain._gamma, chain.threshold = gamma, threshold
        return chain
