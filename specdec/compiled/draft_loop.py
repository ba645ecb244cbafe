"""The gamma steps of a model that drafts, unrolled over buffers that stay where they are, so that one CUDA graph holds
them.

Knows the cache and the order of the steps. The caller says how a token is chosen from logits, and which token the model
reads next.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specdec.compiled.cuda_graphs import StaticCall
from specdec.models.decoder import Decoder
from specdec.models.forward_pass import Pass
from specdec.records import chain_tree


class Choice(NamedTuple):
    """Drafted tokens: those of one step, or of a whole draft.

    Attributes:
        tokens: [N] in the target's vocabulary.
        read: [N] the same tokens in the vocabulary of the model that drafts, which reads them next.
        q: [N, V] the laws that they were drawn from; None for point masses.
    """

    tokens: Tensor
    read: Tensor
    q: Tensor | None


def joined(choices: Sequence[Choice]) -> Choice:
    """Join the choices of all steps into one draft."""
    laws = [choice.q for choice in choices if choice.q is not None]
    return Choice(
        torch.cat([choice.tokens for choice in choices]),
        torch.cat([choice.read for choice in choices]),
        torch.cat(laws) if laws else None,
    )


class StaticLoop(StaticCall[Choice]):
    """Drafts exactly gamma tokens while the host waits for nothing: its inputs are known before the first step, and in
    between only the device decides.

    The first step always reads the last two committed tokens. The cache lacks the last of them, or both after a draft
    that was accepted whole; a slot that is already filled is written again, so that one graph serves both cases.

    Attributes:
        gamma: tokens of a draft.
    """

    shapes = 2  # of passes: on the two tokens that it begins with, and on one

    def __init__(self, decoder: Decoder, gamma: int, choose: Callable[[Tensor, Tensor], Choice]) -> None:
        """
        Args:
            choose: (the model's logits [1, V], a uniform number []) -> the next token; must not wait for the device.
        """
        super().__init__(decoder)
        self.gamma, self._choose = gamma, choose
        self._last = torch.zeros(2, dtype=torch.long, device=decoder.device)
        self._place = torch.zeros(1, dtype=torch.long, device=decoder.device)
        self._uniforms = torch.zeros(gamma, dtype=torch.float64, device=decoder.device)
        self._choice: Choice | None = None

    def __call__(self, last: Sequence[int], place: int, uniforms: Tensor | None) -> Choice:
        """
        Args:
            last: the last two committed tokens.
            place: slot of the first of them; the cache holds all tokens before it.
            uniforms: [gamma] float64 in [0, 1), if `choose` draws; else None.
        """
        # `fill_` sends its number with the launch of the kernel; a copy from the host would wait for the device.
        for slot, token in zip(self._last, last, strict=True):
            slot.fill_(token)
        self._place.fill_(place)
        if uniforms is not None:
            self._uniforms.copy_(uniforms)
        self._choice = self._result(place + self.gamma + 1)
        self.cache.length = place + self.gamma + 1
        # Cloned, because the next draft overwrites these tensors.
        tokens, read, q = self._choice
        return Choice(tokens.clone(), read.clone(), None if q is None else q.clone())

    def _run(self, passes: Sequence[Callable[..., Pass]]) -> Choice:
        on_two, on_one = passes
        choices = [self._choose(on_two(self._last, self._place).logits[-1:], self._uniforms[0])]
        place = self._place + 1
        for uniform in self._uniforms[1:]:
            place = place + 1
            choices.append(self._choose(on_one(choices[-1].read, place).logits, uniform))
        return joined(choices)

    def departure(self, decoder: Decoder, place: int) -> float:
        """Draft once, behind the first `place` slots, and return by how much that departs from a plain call on the same
        tokens: the largest difference of a law, or, for point masses, how far below the largest logit a drafted token's
        is, as a share of it.
        """
        uniforms = torch.linspace(0.05, 0.95, self.gamma, dtype=torch.float64, device=self._last.device)
        drafted = self([1, 2], place, uniforms)
        self.cache.length = place
        logits = decoder.plain(torch.cat([self._last, drafted.read[:-1]]), chain_tree(self.gamma)).logits[1:]
        if drafted.q is not None:
            law = joined([self._choose(logits[step : step + 1], uniforms[step]) for step in range(self.gamma)]).q
            assert law is not None
            return float((law - drafted.q).abs().amax())
        chosen = logits.gather(-1, drafted.read.unsqueeze(-1)).squeeze(-1)
        return float((logits.amax(-1) - chosen).amax() / logits.abs().amax().clamp_min(1.0))
