"""The contract of hidden states: what a target gives to drafters over heads and to the training of heads."""

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
        """The weights [V, D] that make logits of the last layer's states."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Hash of the weights (a hub model's commit): what was trained on them belongs to no others."""

    @abstractmethod
    def keep(self, offset: int) -> None:
        """Make `Target.start` and `commit` leave states in `Target.states`; to be called before anything is compiled.

        Raises:
            UsageError: the model has no such layer.
        """

    @abstractmethod
    def sequence(self, tokens: Tensor, offset: int) -> tuple[Tensor, Tensor]:
        """Return states [B, S, D] and logits [B, S, V] of tokens [B, S], teacher-forced and without the cache.

        Raises:
            UsageError: the model has no such layer.
        """
