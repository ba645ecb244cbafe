"""The contract of hidden states: what a target gives to drafters over heads and to the training of heads."""

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
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

    @property
    @abstractmethod
    def kept(self) -> tuple[int, ...]:
        """The layers whose states stand side by side in `Target.states`: all that anything asked for."""

    @abstractmethod
    def _keep_also(self, offsets: tuple[int, ...]) -> None:
        """Check these layers, and keep those that are not kept yet behind the others."""

    def keep(self, *offsets: int) -> Callable[[Tensor], Tensor]:
        """Make `Target.start` and `commit` leave the states of these layers in `Target.states`; to be called before
        anything is compiled.

        Returns:
            A function that takes `Target.states` [..., D of all kept layers] and returns those of `offsets`, side by
            side in this order [..., len(offsets) * D]: several parts of a run may read different layers.
        Raises:
            UsageError: the model has no such layer.
        """
        self._keep_also(offsets)

        def own(states: Tensor) -> Tensor:
            kept = self.kept
            if kept == offsets:
                return states
            parts = states.unflatten(-1, (len(kept), -1))
            return torch.cat([parts[..., kept.index(offset), :] for offset in offsets], -1)

        return own

    @abstractmethod
    def sequence(self, tokens: Tensor, *offsets: int) -> tuple[Tensor, Tensor]:
        """Return states [B, S, D] of these layers, side by side, and logits [B, S, V] of tokens [B, S], teacher-forced
        and without the cache; UsageError if the model has no such layer.
        """
