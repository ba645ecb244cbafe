"""K-SEQ, the sequential rule of SpecTr (Sun et al. 2310.15141, Algorithm 2): K independent drafts of one position."""

import torch
from torch import Tensor

from specdec.errors import UsageError
from specdec.records import Acceptance, Draft
from specdec.sampling import residual
from specdec.verifiers.base import verifiers
from specdec.verifiers.speculative_sampling import SpeculativeSampling, at


@verifiers.register("k_seq")
class KSeq(SpeculativeSampling):
    """Accept each of a node's K draws with min(1, p(x) / (rho q(x))), the first that passes; p is left as it is.

    rho solves 1 - (1 - b)^K = rho b with b = sum min(p/rho, q), and when none passes the next token is drawn from what
    the rule has not given out: p - min(q, p/rho) [1 - (1 - b)^K] / b, normalised. K is the number of draws of that
    node, a token that was drawn twice counting twice; K = 1 is speculative sampling. Where p is one-hot, a draw of its
    point passes, because q <= 1/rho there; no other does, and what is left of p is its point.

    Draws must be independent: those without replacement are refused. Point masses are not draws; they are followed as
    under `speculative_sampling` (see `descend`).
    """

    def accept(self, draft: Draft, p: Tensor, generator: torch.Generator | None) -> Acceptance:
        """See `Verifier.accept`. Raises UsageError: siblings that were drawn without replacement."""
        if draft.q is not None and draft.draws is None and not draft.tree.is_chain:
            raise UsageError(
                "Bad value verifier=k_seq: it needs siblings that were drawn independently; use "
                "drafter.siblings=independent, or verifier=speculative_sampling."
            )
        return super().accept(draft, p, generator)

    def decide(self, draft: Draft, p: Tensor, children: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
        assert draft.q is not None
        due = children >= 0  # [T]
        draws = due.sum()
        law, q = p.double(), at(draft.q, children[:1]).double()  # [1, V]: siblings were drawn from one law
        rho = acceptance_scale(law, q, draws.clamp_min(1)) if len(children) > 1 else torch.ones_like(law[:, :1])
        tokens = at(draft.tokens, children)
        scaled = law / rho
        passed = uniforms * q.index_select(-1, tokens)[0] < torch.where(due, scaled.index_select(-1, tokens)[0], 0.0)
        chosen = torch.where(passed.any(), children.index_select(0, passed.int().argmax(-1, keepdim=True)), -1)
        kept = torch.minimum(q, scaled)
        b = kept.sum(-1, keepdim=True)
        share = torch.where(b > 0, _some_of(b, draws) / b, 0.0)
        rest = residual(law, kept * share)
        return chosen, torch.where(draws > 0, rest, law).to(p.dtype)


def acceptance_scale(p: Tensor, q: Tensor, draws: Tensor) -> Tensor:
    """Return rho [..., 1] for float64 laws p, q [..., V] and K `draws` [], by bisection in [1, K], because
    1 - (1 - b)^K - rho b falls as rho grows. The upper end is returned: any rho at or above the root gives exactly p,
    so what is left of the interval costs acceptance (less than 1e-9) and never the law.
    """
    low = torch.ones_like(p[..., :1])
    step = low * draws - 1
    for _ in range(36):  # halvings
        step = step / 2
        middle = low + step
        b = torch.minimum(p / middle, q).sum(-1, keepdim=True)
        low = torch.where(_some_of(b, draws) > middle * b, middle, low)
    return low + step


def _some_of(b: Tensor, draws: Tensor) -> Tensor:
    """Return 1 - (1 - b)^K, the chance that one of K draws passes, precise for a small b."""
    return -torch.expm1(draws * torch.log1p(-b.clamp_max(1.0)))
