"""K-SEQ's scale against the theory's root search, at its corners, and what it refuses. Its law: test_losslessness."""

import pytest
import torch
from fixtures.refusals import refused
from oracles import multi_draft

from specdec.records import Draft, Tree
from specdec.verifiers.base import verifiers
from specdec.verifiers.k_seq import acceptance_scale

P, Q = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.2, 0.5, 0.1, 0.2]], dtype=torch.float64)


@pytest.mark.parametrize("draws", [1, 2, 5, 40])
def test_the_scale_is_at_or_just_above_the_root(draws):
    generator = torch.Generator().manual_seed(0)
    p, q = (torch.randn(2, 6, 9, generator=generator).double() * 3).softmax(-1)
    found = acceptance_scale(p, q, torch.tensor(draws))
    assert found.shape == (6, 1)
    for one, other, rho in zip(p, q, found[:, 0].tolist(), strict=True):
        root = multi_draft.k_seq_rho(one.numpy(), other.numpy(), draws)
        assert -1e-13 <= rho - root < 1e-8


def test_corners_leave_a_law_behind():
    """Equal laws, laws without a common token, one-hot laws, and a law of 16-bit zeros: never NaN, always a draft's
    token or one of p.
    """
    rule = verifiers.build({"name": "k_seq"})
    zero, one = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([0.0, 1.0, 0.0])
    for p, q in ((zero, zero), (zero, one), (torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.5, 0.5, 0.0]))):
        for token in q.nonzero().flatten().tolist():
            draft = Draft(torch.tensor([token]), Tree((-1,)), q[None], draws=((0, 0), ()))
            for seed in range(6):
                decision = rule.accept(draft, p.expand(2, -1), torch.Generator().manual_seed(seed))
                assert decision.path == ((0,) if torch.equal(p, q) else ())
                assert p[decision.next_token] > 0 and decision.rejected == (not decision.path)


def test_draws_without_replacement_are_refused():
    rule = verifiers.build({"name": "k_seq"})
    q = torch.stack([Q, Q.index_fill(0, torch.tensor([1]), 0.0) / 0.5])
    with refused(r"drafter\.siblings=independent"):
        rule.accept(Draft(torch.tensor([1, 0]), Tree((-1, -1)), q), P.expand(3, -1), torch.Generator())
