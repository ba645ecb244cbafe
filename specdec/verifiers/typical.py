"""Typical acceptance (Medusa, Cai et al. 2401.10774, 2.3.1): tokens that the target finds likely enough are kept."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from specdec.config import Named, typed
from specdec.records import Acceptance, Draft
from specdec.structures.base import EVERY_STRUCTURE
from specdec.verifiers.base import Verifier, VerifierCapabilities, first_choice_acceptance, verifiers


@typed
class TypicalConfig(Named):
    epsilon: Annotated[float, Field(gt=0.0, lt=1.0)]
    delta: Annotated[float, Field(gt=0.0)] | None


@verifiers.register("typical")
class Typical(Verifier):
    """Accept a node while p(x) > min(epsilon, delta exp(-H(p))), H in nats: where the target is sure it has to agree,
    where it is not, a draft need only be plausible (theory.md 1.2). No q, no randomness.

    Of all paths whose nodes pass the longest wins, the first in the draft's order among equals (Medusa's own code
    takes the likeliest of them). The paper keeps a step's first token, the target's argmax, unconditionally. Here that
    is the token which ended the round before, the root of this draft: so the next token is argmax p after the last
    accepted node, and a round without a draft emits argmax p, which makes the baseline greedy text.

    p is the law at the run's own temperature, as in Medusa: the warmer, the more passes. At temperature 0 p is one-hot,
    the threshold lies below 1, and the rule is exact match.
    """

    capabilities = VerifierCapabilities(
        handles=EVERY_STRUCTURE, lossless=False, deterministic=True, exact_match=True, token_by_token=False
    )

    def __init__(self, config: TypicalConfig) -> None:
        self._epsilon = config.epsilon
        self._delta = config.epsilon**0.5 if config.delta is None else config.delta

    def accept(self, draft: Draft, p: Tensor, generator: torch.Generator | None) -> Acceptance:
        return first_choice_acceptance(draft, p, p > self._threshold(p))

    def passed(self, p: Tensor, q: Tensor, depth: int | Tensor = 1) -> Tensor:
        return q.to(p.dtype) * (p > self._threshold(p))

    def _threshold(self, p: Tensor) -> Tensor:
        """Return the threshold [..., 1] under p [..., V]."""
        entropy = torch.special.entr(p).sum(-1, keepdim=True)
        return (self._delta * (-entropy).exp()).clamp_max(self._epsilon)
