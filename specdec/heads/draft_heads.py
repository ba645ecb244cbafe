"""The contract of heads that draft: what drafters need of a network over h_t, our own or a published one."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn


class DraftHeads(nn.Module, ABC):
    """K heads over h_t, the state of the last token that the target has evaluated; head k predicts x_{t+k+1}.

    Attributes:
        hidden_size, vocab_size: D and V, as the target has them.
        grounded: head k also reads x_{t+1}, ..., x_{t+k}.
    """

    hidden_size: int
    vocab_size: int
    grounded: bool

    @abstractmethod
    def __len__(self) -> int: ...

    def offset(self, layers: int) -> int:
        """Return the layer whose states the heads read, counted down from the last of `layers` (`HiddenStates`)."""
        return 0

    def contextual(self, states: Tensor, past: Any = None) -> tuple[Tensor, Any]:
        """Turn the target's states [B, S, D] into what the heads read; `past` is the second result of the call on those
        before, which may be used up.
        """
        return states, None

    @abstractmethod
    def draft_features(self, k: int, state: Tensor, drafted: Tensor) -> Tensor:
        """Return the features [M, ...] of head k after M drafted paths [M, k], x_{t+1} (the root) to x_{t+k}, and h_t
        [D] or [M, D] of `contextual`; [1, ...] will do for heads that read no tokens.
        """

    @abstractmethod
    def logits(self, k: int, features: Tensor) -> Tensor:
        """Return the logits [..., V] of head k for its features; -inf for tokens that it cannot draft."""

    def features(self, states: Tensor, tokens: Tensor, count: int | None = None) -> list[Tensor]:
        """Return the features [B, S, ...] of heads 1, ..., `count` (all if None) at every position of texts, by the
        target's states [B, S, D] and the tokens [B, S].

        Head k at position t reads tokens t+1 to t+k and predicts x_{t+k+1}. Its features have no meaning where the text
        has no such token.
        """
        states, _ = self.contextual(states)
        every = states.flatten(0, 1)
        found = []
        for k in range(1, (len(self) if count is None else count) + 1):
            following = torch.stack([tokens.roll(-step, dims=1) for step in range(1, k + 1)], -1)  # [B, S, k]
            features = self.draft_features(k, every, following.flatten(0, 1))
            found.append(features.unflatten(0, states.shape[:2]))
        return found

    @property
    @abstractmethod
    def flops_per_token(self) -> float:
        """Floating-point operations of a head and its way to the vocabulary, the mean over the heads. What runs once
        for a token of the text, however many are drafted, is left out.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return what is recorded about the heads: `count` and what else tells them from others."""
