"""Rules for several drafts: losslessness, and each acceptance found another way."""

from itertools import chain, combinations, permutations, product

import numpy as np
import pytest
from oracles import acceptance
from oracles.multi_draft import (
    k_seq,
    k_seq_rho,
    multi_round,
    without_replacement,
)

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


@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_no_rule_beats_the_optimum_of_independent_drafts(drafts):
    """Max-flow = min-cut: no lossless rule accepts more than 1 + min_H [p(H) - q(H)^K] over all sets of tokens H."""
    for p, q in PAIRS:
        sets = [list(chosen) for size in range(len(p) + 1) for chosen in combinations(range(len(p)), size)]
        optimum = 1 + min(p[chosen].sum() - q[chosen].sum() ** drafts for chosen in sets)
        assert multi_round(p, q, drafts).acceptance <= optimum + 1e-12
        assert k_seq(p, q, drafts).acceptance <= optimum + 1e-12


def test_one_draft_is_speculative_sampling():
    for p, q in PAIRS:
        np.testing.assert_allclose([rule(p, q, 1).acceptance for rule in RULES], acceptance.beta(p, q), atol=1e-9)


def by_hand(p, q, path):
    """Chance that a given sequence of distinct drafts is drawn and tested in vain up to its last, which passes."""
    p, q, chance = list(p), list(q), 1.0
    for step, x in enumerate(path):
        drawn = q[x]
        accepted = min(1.0, p[x] / drawn) if drawn > 0 else 0.0
        if step == len(path) - 1:
            return chance * drawn * accepted
        chance *= drawn * (1 - accepted)
        left = [max(a - b, 0.0) for a, b in zip(p, q, strict=True)]
        if chance == 0 or sum(left) == 0:
            return 0.0
        p = [value / sum(left) for value in left]
        q[x] = 0.0
        untried = [float(y not in path[: step + 1]) for y in range(len(q))]
        q = [value / sum(q) for value in q] if sum(q) > 0 else [value / sum(untried) for value in untried]
    raise AssertionError


@pytest.mark.parametrize("drafts", [2, 3])
def test_without_replacement_is_the_sum_over_every_sequence_of_drafts(drafts):
    for p, q in PAIRS:
        paths = chain.from_iterable(permutations(range(len(p)), size) for size in range(1, drafts + 1))
        assert without_replacement(p, q, drafts).acceptance == pytest.approx(sum(by_hand(p, q, path) for path in paths))


def test_once_q_is_empty_drafts_are_uniform_over_untried_tokens():
    p, q = np.array([0.25, 0.25, 0.5]), np.array([1.0, 0.0, 0.0])
    # 0 is accepted with 1/4; then p is (0, 1/3, 2/3) and q is (0, 1/2, 1/2): 5/6 of the rest.
    assert without_replacement(p, q, 2).acceptance == pytest.approx(0.25 + 0.75 * 5 / 6)
    assert multi_round(p, q, 2).acceptance == pytest.approx(0.25)


@pytest.mark.parametrize("drafts", [2, 3, 8])
def test_rho_solves_its_equation_and_is_the_least_that_leaves_a_residual(drafts):
    for p, q in PAIRS:
        rho = k_seq_rho(p, q, drafts)
        b = np.minimum(p / rho, q).sum()
        if b == 0:
            assert rho == drafts  # no token in common: no rho accepts anything
            continue
        assert 1 <= rho <= drafts
        assert 1 - (1 - b) ** drafts == pytest.approx(rho * b, rel=1e-9)
        least = rho * 0.98
        b = np.minimum(p / least, q).sum()
        given_out = np.minimum(q, p / least) * (1 - (1 - b) ** drafts) / b
        assert least < 1 or (p - given_out).min() < 0


def test_k_seq_of_equal_and_of_disjoint_laws():
    assert k_seq_rho(P, P, 3) == pytest.approx(1) and k_seq(P, P, 3).acceptance == pytest.approx(1)
    apart = k_seq([1.0, 0.0], [0.0, 1.0], 3)
    assert apart.acceptance == 0
    np.testing.assert_array_equal(apart.emitted, [1, 0])


def test_rare_tokens_keep_their_digits():
    """b near 1e-9: 1 - (1 - b)^K and rho b agree in all but the last digits, and rho stays in its range."""
    p, q = np.array([1 - 1e-9, 1e-9]), np.array([1e-9, 1 - 1e-9])
    assert 1 <= k_seq_rho(p, q, 4) <= 4
    np.testing.assert_allclose(k_seq(p, q, 4).emitted, p, rtol=1e-6)


def test_a_large_vocabulary_is_no_obstacle_to_what_is_not_enumerated():
    p, q = np.random.default_rng(0).dirichlet(np.full(20_000, 0.1), size=2)
    for found in (multi_round(p, q, 4), k_seq(p, q, 4)):
        np.testing.assert_allclose(found.emitted, p, atol=1e-12)
        assert acceptance.beta(p, q) < found.acceptance < 1


def test_out_of_range_arguments_are_refused():
    for rule in (*RULES, k_seq_rho):
        with pytest.raises(ValueError, match="drafts must be a whole number of at least 1"):
            rule(P, Q, 0)
        with pytest.raises(ValueError, match="sum to 1"):
            rule(P * 0.9, Q, 2)
        with pytest.raises(ValueError, match="rows of the same length"):
            rule(P, [0.5, 0.5], 2)
    with pytest.raises(ValueError, match="at most the 4 tokens"):
        without_replacement(P, Q, 5)
    with pytest.raises(ValueError, match="too many"):
        without_replacement(np.full(200, 1 / 200), np.full(200, 1 / 200), 5)
