"""The capped-geometric model: sums over the pmf, limits, a simulation, what Leviathan et al. guarantee, batches."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import rounds

from specdec.theory import capped_geometric as model

ALPHAS = st.floats(0, 1, allow_nan=False)
GAMMAS = st.integers(0, 40)


@given(ALPHAS, GAMMAS)
@settings(max_examples=60)
def test_closed_forms_are_moments_of_the_pmf(alpha, gamma):
    pmf, k = model.accepted_pmf(alpha, gamma), np.arange(gamma + 1)
    mean = pmf @ (k + 1)
    assert pmf.sum() == pytest.approx(1)
    assert model.tokens_per_round(alpha, gamma) == pytest.approx(mean, rel=1e-9)


@given(st.floats(0.01, 0.99), st.integers(1, 40))
@settings(max_examples=30)
def test_slope_is_the_derivative(alpha, gamma):
    step = 1e-6
    difference = model.tokens_per_round(alpha + step, gamma) - model.tokens_per_round(alpha - step, gamma)
    assert model.tokens_per_round_slope(alpha, gamma) == pytest.approx(difference / (2 * step), rel=1e-4, abs=1e-4)


def test_the_alpha_of_mixed_offers():
    assert model.alpha_for(3.68928, {5: 1.0}) == pytest.approx(0.8)  # theory.md 2.1
    assert model.alpha_for((1 + 3.68928) / 2, {0: 0.5, 5: 0.5}) == pytest.approx(0.8)
    assert model.alpha_for(3.51, {0: 0.5, 5: 0.5}) is None  # alpha 1 gives (1 + 6) / 2
    assert model.alpha_for(0.9, {5: 1.0}) == 0.0


def test_exact_at_the_ends_and_accurate_next_to_one():
    assert model.tokens_per_round(1, 7) == 8 and model.tokens_per_round(0, 7) == 1
    assert model.tokens_per_round(0, 0) == 1 and model.tokens_per_round(1, 0) == 1
    np.testing.assert_array_equal(model.accepted_pmf(1, 3), [0, 0, 0, 1])
    np.testing.assert_array_equal(model.accepted_pmf(0, 3), [1, 0, 0, 0])
    near = 1 - 1e-13  # 8 - 28e-13: the naive quotient is wrong in the third digit here
    assert 8 - model.tokens_per_round(near, 7) == pytest.approx(28 * (1 - near), rel=1e-2)
    assert model.tokens_per_round_slope(1, 7) == 28
    assert model.tokens_per_round(0.75, np.inf) == pytest.approx(4)
    assert model.tokens_per_round(1, np.inf) == np.inf and model.tokens_per_round(0, np.inf) == 1
    np.testing.assert_array_equal(rounds.expected_rounds(1, 3, 9), [0, 1, 1, 1, 1, 2, 2, 2, 2, 3])
    np.testing.assert_array_equal(rounds.expected_rounds(0, 3, 4), [0, 1, 2, 3, 4])
    assert model.tokens_per_round_rows(0.7, 4, 1) == pytest.approx(model.tokens_per_round(0.7, 4))


@given(st.floats(0.01, 0.99), st.floats(0, 1))
@settings(max_examples=60)
def test_drafting_helps_exactly_if_alpha_exceeds_c(alpha, c):
    best = model.optimal_gamma(alpha, c, max_gamma=50)
    if alpha > c + 1e-9:
        assert best.gamma >= 1 and best.speedup >= (1 + alpha) / (1 + c) - 1e-12 > 1
    elif alpha < c - 1e-9:
        assert (best.gamma, best.speedup) == (0, 1)


def test_an_oracle_drafts_what_will_be_accepted_and_no_more():
    """Simulated rounds: the lengths of runs of successes, each drafted in full; five standard errors of the mean."""
    alpha, c = 0.8, 0.05
    accepted = np.random.default_rng(0).geometric(1 - alpha, 200_000) - 1
    rate = (accepted + 1).sum() / (1 + c * accepted).sum()
    spread = np.std((accepted + 1) - rate * (1 + c * accepted)) / np.sqrt(len(accepted)) / (1 + c * accepted).mean()
    assert model.oracle_speedup(alpha, c) == pytest.approx(rate, abs=5 * spread)


@given(st.floats(0.0, 1.0), st.floats(0.001, 1))
@settings(max_examples=20)
def test_no_oracle_gains_more_than_the_paper_says(alpha, c):
    """Section 3.5 says up to about 60%; the exact limit is e / (e - 1)."""
    gain = model.oracle_gain(alpha, c, max_gamma=6000)
    assert 1 - 1e-9 <= gain < np.e / (np.e - 1)


def test_the_limit_of_the_oracle_is_nearly_reached():
    assert model.oracle_gain(1 - (np.e - 2) * 1e-3, 1e-3) == pytest.approx(np.e / (np.e - 1), abs=5e-4)


def test_a_free_perfect_drafter_runs_into_the_search_limit():
    best = model.optimal_gamma(1, 0, max_gamma=30)
    assert (best.gamma, best.speedup) == (30, 31)


def test_arguments_broadcast_and_gamma_zero_costs_nothing():
    np.testing.assert_allclose(model.speedup(0.8, [0, 5], 0.0), [1, 3.68928])
    assert model.speedup(0.8, 5, 0.1, 1.5) == pytest.approx(model.tokens_per_round(0.8, 5) / 2)


def test_the_longest_of_a_batch_is_counted_out():
    shares = [0.5, 0.2, 0.3]
    pairs = {(i, j): a * b for i, a in enumerate(shares) for j, b in enumerate(shares)}
    counted = [sum(chance for pair, chance in pairs.items() if max(pair) == k) for k in range(3)]
    assert model.longest_of_batch(shares, 2) == pytest.approx(counted)
    assert model.longest_of_batch(shares, 1) == pytest.approx(shares)
    assert model.longest_of_batch(shares, [1, 64])[1] == pytest.approx([0, 0, 1], abs=1e-9)
