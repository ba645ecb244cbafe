"""Block verification (Sun et al. 2403.10444, Algorithm 2): a chain is judged as a whole, not token by token."""

import torch
from torch import Tensor

from specdec.records import Acceptance, Draft
from specdec.sampling import one_hot, sample
from specdec.verifiers.base import Verifier, VerifierCapabilities, chain_acceptance, correction, verifiers


@verifiers.register("block")
class BlockVerification(Verifier):
    """Accept the longest prefix that passes its own test, even if a shorter one failed (theory.md 1.3).

    With p_0 = 1, p_i = min(1, p_{i-1} p(x_i)/q(x_i)) and n_i = sum_x (p_i p_{i+1}(x) - q_{i+1}(x))_+ it passes with
    h_i = n_i / (n_i + 1 - p_i) (0/0 is 1), the whole chain with p_gamma. After tau < gamma tokens, which counts as one
    rejection observed at depth tau + 1, the next is drawn from norm((p_tau p_{tau+1} - q_{tau+1})_+). Lossless, and
    accepts at least as many tokens as speculative sampling on average; acceptance at a position depends on the
    positions around it, so `alpha.mle` measures the rule, not the mean of sum min(p, q). Exact match with one-hot p.
    """

    capabilities = VerifierCapabilities(handles=frozenset({"chain"}), exact_match=True, token_by_token=False)

    def accept(self, draft: Draft, p: Tensor, generator: torch.Generator | None) -> Acceptance:
        offered = len(draft)
        if offered == 0:
            return chain_acceptance(draft, None, sample(p[0], generator))
        q = (one_hot(draft.tokens, p.shape[-1]) if draft.q is None else draft.q).to(p.dtype)
        weights = _weights(p[:offered], q, draft.tokens)  # [N+1]
        scaled = weights[:-1, None] * p[:offered]  # [N, V]
        surplus = (scaled - q).clamp_min(0.0).sum(-1)[1:]  # n_1 ... n_{N-1}
        total = surplus + (1 - weights[1:-1])
        h = torch.cat([torch.where(total > 0, surplus / total, 1.0), weights[-1:]])
        passed = torch.rand(offered, generator=generator, device=p.device, dtype=p.dtype) < h
        accepted = (passed * torch.arange(1, offered + 1, device=p.device)).max()
        return chain_acceptance(draft, accepted, sample(correction(draft, p, accepted, scaled), generator))


def _weights(p: Tensor, q: Tensor, tokens: Tensor) -> Tensor:
    """Return p_0 ... p_N [N+1] of theory.md 1.3 for N drafted tokens under p, q [N, V]. ln p_i is a walk of steps
    ln p(x_i)/q(x_i) that is held at or below 0: the free walk minus its highest point so far.
    """
    chosen = tokens.unsqueeze(-1)
    # float64: the steps of a long chain cancel.
    steps = p.gather(-1, chosen).double().log() - q.gather(-1, chosen).double().log()
    walk = steps.squeeze(-1).cumsum(0)
    held = (walk - walk.cummax(0).values.clamp_min(0.0)).exp()
    return torch.cat([held.new_ones(1), held]).to(p.dtype)
