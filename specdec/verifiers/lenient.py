"""Lenient speculative sampling (Leviathan et al. 2211.17192, appendix A.5): more acceptance for a bounded departure."""

from dataclasses import replace
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from specdec.config import typed
from specdec.records import Acceptance, Draft
from specdec.sampling import residual, sample
from specdec.verifiers.base.contract import (
    Verifier,
    VerifierCapabilities,
    chain_acceptance,
    correction,
    passed_or_corrected,
    verifiers,
)
from specdec.verifiers.greedy import Greedy


@typed
class LenientConfig:
    name: Literal["lenient"]
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

    At temperature 0 the target hands over a one-hot p, in which nothing but its argmax can pass: every lenience and
    both forms are then exact match.
    """

    capabilities = VerifierCapabilities(handles=frozenset({"chain"}), lossless=False, token_by_token=False)

    def __init__(self, config: LenientConfig) -> None:
        self._lenience = config.lenience
        self._greedy = config.form == "greedy"
        self.capabilities = replace(self.capabilities, deterministic=self._greedy)
        self._kept = config.lenience if config.residual == "lenient" else 1.0  # share of q taken off p in the residual

    def for_greedy(self) -> Verifier:
        return Greedy()

    def accept(self, draft: Draft, p: Tensor, generator: torch.Generator | None) -> Acceptance:
        offered = len(draft)
        if offered == 0:
            return chain_acceptance(draft, None, p[0].argmax() if self._greedy else sample(p[0], generator))
        tokens = draft.tokens.unsqueeze(-1)
        p_token = p[:offered].gather(-1, tokens).squeeze(-1)  # [N]
        if self._greedy:
            passed = p_token >= self._lenience * p[:offered].amax(-1)
        else:
            bound = torch.rand(offered, generator=generator, device=p.device, dtype=p.dtype) * self._lenience
            if draft.q is not None:
                bound = bound * draft.q.gather(-1, tokens).squeeze(-1)
            passed = bound < p_token
        accepted = passed.cumprod(0).sum()
        if self._greedy:
            next_token = p[accepted].argmax()
        else:
            next_token = sample(correction(draft, p, accepted, kept=self._kept), generator)
        return chain_acceptance(draft, accepted, next_token)

    def passed(self, p: Tensor, q: Tensor, depth: int | Tensor = 1) -> Tensor:
        q = q.to(p.dtype)
        if self._greedy:
            return q * (p >= self._lenience * p.amax(-1, keepdim=True))
        return torch.minimum(q, p / self._lenience)

    def law(self, p: Tensor, q: Tensor, depth: int | Tensor = 1) -> Tensor:
        corrected = self.reference(p) if self._greedy else residual(p, self._kept * q.to(p.dtype))
        return passed_or_corrected(self.passed(p, q, depth), corrected)

    def acceptance(self, p: Tensor, q: Tensor) -> Tensor:
        return (p / (self._lenience * q)).clamp_max(1.0)
