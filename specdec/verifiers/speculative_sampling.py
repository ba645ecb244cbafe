"""Speculative sampling (Leviathan et al. 2211.17192, Algorithm 1; Chen et al. 2302.01318, Algorithm 2), and multi-round
rejection where a draft branches (SpecInfer 2305.09781, Algorithm 2; Sequoia 2402.12374, Algorithm 2; RSD 2402.14160).
"""

import torch
from torch import Tensor

from specdec.records import Acceptance, Draft
from specdec.sampling import residual, sample
from specdec.structures.base import EVERY_STRUCTURE
from specdec.verifiers.base.contract import Verifier, VerifierCapabilities, chain_acceptance, correction, verifiers
from specdec.verifiers.base.descent import at, can_look, descend
from specdec.verifiers.greedy import Greedy


@verifiers.register("speculative_sampling")
class SpeculativeSampling(Verifier):
    """Accept x ~ q with probability min(1, p(x)/q(x)); at the first rejection draw from norm((p - q)_+).

    Where a node has several children they are tested in the order of `draft.tests`, each against what the rejections
    before it left of p: p <- norm((p - q)_+) with the very q that the rejected one was drawn from. With draws that are
    independent this is SpecInfer's rule, with draws without replacement Sequoia's and RSD's; one recursion, because q
    travels with each token.
    """

    capabilities = VerifierCapabilities(handles=EVERY_STRUCTURE)

    def for_greedy(self) -> Verifier:
        # A token passes only where p has its point, and what corrects a rejection is that point.
        return Greedy()

    def accept(self, draft: Draft, p: Tensor, generator: torch.Generator | None) -> Acceptance:
        if draft.tree.is_chain and draft.draws is None:
            return accept_chain(draft, p, generator)
        return descend(draft, p, generator, _multi_round)


def accept_chain(
    draft: Draft, p: Tensor, generator: torch.Generator | None, lenience: float = 1.0, kept: float = 1.0
) -> Acceptance:
    """Decide all positions of a chain at once, each token with min(1, p / (lenience q)). After a rejection the share
    `kept` of q is taken off p; after an empty draft the token is drawn from p[0].
    """
    offered = len(draft)
    if offered == 0:
        return chain_acceptance(draft, None, sample(p[0], generator))
    tokens = draft.tokens.unsqueeze(-1)
    p_token = p[:offered].gather(-1, tokens).squeeze(-1)  # [N]
    bound = torch.rand(offered, generator=generator, device=p.device, dtype=p.dtype)
    if lenience < 1.0:
        bound = bound * lenience
    if draft.q is not None:
        # u < p/q, written without the division: q may be 0 only where a token cannot have been drawn.
        bound = bound * draft.q.gather(-1, tokens).squeeze(-1)
    accepted = (bound < p_token).cumprod(0).sum()
    return chain_acceptance(draft, accepted, sample(correction(draft, p, accepted, kept=kept), generator))


def _multi_round(draft: Draft, p: Tensor, children: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """Make the tests of one node, one after the other (see `descent.Rule`)."""
    assert draft.q is not None
    laws, tokens = at(draft.q, children).to(p.dtype), at(draft.tokens, children)  # [T, V], [T]
    chosen = torch.full_like(children[:1], -1)
    for test in range(len(children)):
        child, token, q = children[test : test + 1], tokens[test : test + 1], laws[test : test + 1]
        due = (child >= 0) & (chosen < 0)
        p_token = torch.where(due, p.index_select(-1, token)[0], 0.0)  # where nothing is due, nothing passes
        passed = uniforms[test : test + 1] * q.index_select(-1, token)[0] < p_token
        chosen = torch.where(passed, child, chosen)
        p = torch.where(due & ~passed, residual(p, q), p)
        if can_look(p) and not due & ~passed:
            break
    return chosen, p
