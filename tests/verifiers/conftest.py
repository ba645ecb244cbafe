"""Exact laws of the tokens that a rule emits, for rules that are not lossless."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specdec.records import Draft, chain_tree
from specdec.sampling import sample
from specdec.verifiers import Verifier


@pytest.fixture
def first_token(enumeration) -> Callable[..., tuple[Tensor, float]]:
    """`first_token(rule, p, q)` gives the law [V] of the first token that a round with one drafted token emits, and the
    chance that it was the draft's. The draft is drawn from q; where q is one-hot, it is a point mass without q.
    """

    def law_of(rule: Verifier, p: Tensor, q: Tensor) -> tuple[Tensor, float]:
        rows = torch.stack([p, torch.full_like(p, 1 / len(p))])

        def once() -> tuple[int, bool]:
            token = sample(q, enumeration.generator)
            draft = Draft(token.reshape(1), chain_tree(1), None if q.max() == 1 else q.unsqueeze(0))
            acceptance = rule.accept(draft, rows, enumeration.generator)
            return (int(token) if acceptance.path else acceptance.next_token), bool(acceptance.path)

        law, accepted = torch.zeros_like(p), 0.0
        for (token, passed), chance in enumeration.law(once).items():
            law[token] += chance
            accepted += chance * passed
        return law, accepted

    return law_of
