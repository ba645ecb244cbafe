"""Speculative sampling (Leviathan et al. 2211.17192, Algorithm 1; Chen et al. 2302.01318, Algorithm 2)."""

from typing import Literal

import torch
from torch import Tensor

from specdec.config import typed
from specdec.records import Acceptance, Draft
from specdec.sampling import sample
from specdec.verifiers.base import Verifier, chain_acceptance, correction, verifiers
from specdec.verifiers.greedy import Greedy, GreedyConfig


@typed
class SpeculativeSamplingConfig:
    name: Literal["speculative_sampling"]


@verifiers.register("speculative_sampling")
class SpeculativeSampling(Verifier):
    """Accept x ~ q with probability min(1, p(x)/q(x)); at the first rejection draw from norm((p - q)_+)."""

    lossless = True
    handles = frozenset({"chain"})

    def __init__(self, config: SpeculativeSamplingConfig) -> None:
        pass

    def for_greedy(self) -> Verifier:
        # A token passes only where p has its point, and what corrects a rejection is that point.
        return Greedy(GreedyConfig(name="greedy"))

    def accept(self, draft: Draft, p: Tensor, generator: torch.Generator | None) -> Acceptance:
        offered = len(draft)
        if offered == 0:
            return chain_acceptance(draft, None, sample(p[0], generator))
        tokens = draft.tokens.unsqueeze(-1)
        p_token = p[:offered].gather(-1, tokens).squeeze(-1)  # [N]
        bound = torch.rand(offered, generator=generator, device=p.device, dtype=p.dtype)
        if draft.q is not None:
            # u < p/q, written without the division: q may be 0 only where a token cannot have been drawn.
            bound = bound * draft.q.gather(-1, tokens).squeeze(-1)
        accepted = (bound < p_token).cumprod(0).sum()
        return chain_acceptance(draft, accepted, sample(correction(draft, p, accepted), generator))
