"""Lenient speculative sampling (Leviathan et al. 2211.17192, appendix A.5): more acceptance for a bounded departure."""

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from specdec.config import Named, typed
from specdec.records import Acceptance, Draft
from specdec.sampling import residual
from specdec.verifiers.base import Verifier, VerifierCapabilities, first_choice_acceptance, verifiers
from specdec.verifiers.speculative_sampling import accept_chain


@typed
class LenientConfig(Named):
    lenience: Annotated[float, Field(gt=0.0, le=1.0)]
    residual: Literal["plain", "lenient"]
    form: Literal["sampled", "greedy"]


@verifiers.register("lenient")
class Lenient(Verifier):
    """Accept x ~ q with probability min(1, p(x) / (l q(x))); no token gets more than p(x)/l (theory.md 1.2).

    After a rejection the next token is drawn from norm((p - q)_+), or with residual=lenient from norm((p - l q)_+). At
    lenience 1 this is speculative sampling. What it emits at a tested position is known exactly (`law`).

    form=greedy is the rule for greedy text: accept while p(x) >= l max p, correct with argmax p; no randomness. It
    compares probabilities, so p has to be the model's whole law: the run uses sampling=temperature, at 1 for the
    paper's rule, and its baseline is greedy text all the same, because a round without a draft emits argmax p too.

    At temperature 0 p is one-hot, and nothing but its argmax can pass: every lenience and both forms are exact match.
    """

    capabilities = VerifierCapabilities(
        handles=frozenset({"chain"}), lossless=False, exact_match=True, token_by_token=False
    )

    def __init__(self, config: LenientConfig) -> None:
        self._lenience = config.lenience
        self._greedy = config.form == "greedy"
        self.capabilities = replace(self.capabilities, deterministic=self._greedy)
        self._kept = config.lenience if config.residual == "lenient" else 1.0  # share of q taken off p in the residual

    def accept(self, draft: Draft, p: Tensor, generator: torch.Generator | None) -> Acceptance:
        if self._greedy:
            return first_choice_acceptance(draft, p, self._likely(p))
        return accept_chain(draft, p, generator, self._lenience, self._kept)

    def _likely(self, p: Tensor) -> Tensor:
        """Return a mask [..., V] of the tokens that the greedy form accepts under p [..., V]."""
        return p >= self._lenience * p.amax(-1, keepdim=True)

    def passed(self, p: Tensor, q: Tensor, depth: int | Tensor = 1) -> Tensor:
        q = q.to(p.dtype)
        if self._greedy:
            return q * self._likely(p)
        return torch.minimum(q, p / self._lenience)

    def corrected(self, p: Tensor, q: Tensor) -> Tensor:
        return super().corrected(p, q) if self._greedy else residual(p, self._kept * q.to(p.dtype))
