"""Speculative sampling (Leviathan et al. 2211.17192, Algorithm 1; Chen et al. 2302.01318, Algorithm 2)."""

from typing import Literal

import torch
from torch import Tensor

from specdec.config import typed
from specdec.records import Acceptance, Draft
from specdec.sampling import one_hot, residual, sample
from specdec.verifiers.base import Verifier, verifiers


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

    def accept(self, draft: Draft, p: Tensor, generator: torch.Generator | None) -> Acceptance:
        offered = len(draft)
        if offered == 0:
            return Acceptance((), int(sample(p[0], generator)), rejected=False)
        tokens = draft.tokens.unsqueeze(-1)
        p_token = p[:offered].gather(-1, tokens).squeeze(-1)  # [N]
        bound = torch.rand(offered, generator=generator, device=p.device, dtype=p.dtype)
        if draft.q is not None:
            # u < p/q, written without the division: q may be 0 only where a token cannot have been drawn.
            bound = bound * draft.q.gather(-1, tokens).squeeze(-1)
        accepted = int((bound < p_token).cumprod(0).sum())
        law = p[accepted]
        if accepted < offered:
            q = one_hot(draft.tokens[accepted], p.shape[-1]) if draft.q is None else draft.q[accepted]
            law = residual(law, q.to(law.dtype))
        return Acceptance(tuple(range(accepted)), int(sample(law, generator)), rejected=accepted < offered)
