"""Rules for several drafts: losslessness, and each acceptance found another way."""

from itertools import product

import numpy as np
import pytest
from oracles import acceptance
from oracles.multi_draft import k_seq, multi_round, without_replacement

P = np.array([0.5, 0.3, 0.15, 0.05])
Q = np.array([0.2, 0.5, 0.1, 0.2])
RULES = [multi_round, without_replacement, k_seq]


def laws(seed, vocabulary, zeros):
    """A pair of random laws with some entries at zero, apart in p and q."""
    generator = np.random.default_rng(seed)
    pair = generator.dirichlet(np.full(vocabulary, 0.7), size=2)
    for row in pair:
        row[generator.permutation(vocabulary)[:zeros]] = 0
    return pair / pair.sum(axis=1, keepdims=True)


PAIRS = [
    (P, Q),
    *(laws(seed, vocabulary, zeros) for seed, (vocabulary, zeros) in enumerate(product((3, 5), (0, 1, 2)))),
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_every_rule_emits_exactly_p(rule, drafts):
    for p, q in PAIRS:
        found = rule(p, q, drafts)
        np.testing.assert_allclose(found.emitted, p, atol=1e-12)
        assert -1e-12 <= found.acceptance <= 1 + 1e-12


def test_one_draft_is_speculative_sampling():
    for p, q in PAIRS:
        np.testing.assert_allclose([rule(p, q, 1).acceptance for rule in RULES], acceptance.beta(p, q), atol=1e-9)
