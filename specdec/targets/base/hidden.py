"""What a target gives to whoever reads its hidden states: drafters over heads, and the training of heads."""

from abc import ABC, abstractmethod

from torch import Tensor


class HiddenStates(ABC):
    """The hidden states of a target's model, and the weights around them.

    A layer is named by its `offset`, counted down from the last: 0 is what the output head reads, 1 the last layer's
    input, ..., `layers` the input embeddings.
    """

    @property
    @abstractmethod
    def layers(self) -> int:
        """The number of layers; 0 where there is no network."""

    @property
    @abstractmethod
    def embedding(self) -> Tensor:
        """The input embeddings [V, D]."""

    @property
    @abstractmethod
    def output_layer(self) -> Tensor:
        """The product [V, D] from the last layer's states to logits."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Hash of the weights (a hub model's commit): what was trained on them belongs to no others."""

    @abstractmethod
    def keep(self, offset: int) -> None:
        """From now on `Target.start` and `commit` leave states in `Target.states`; ask before anything is compiled.

        Raises:
            UsageError: fewer layers than that.
        """

    @abstractmethod
    def sequence(self, tokens: Tensor, offset: int) -> tuple[Tensor, Tensor]:
        """Teacher-forced, without the cache: states [B, S, D] and logits [B, S, V] of tokens [B, S].

        Raises:
            UsageError: fewer layers than that.
        """
