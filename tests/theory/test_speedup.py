"""Speedup and operations: the guarantees of Leviathan et al., Amdahl, and the longest draft of a batch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.theory.capped_geometric import tokens_per_round
from specdec.theory.speedup import longest_of_batch, optimal_gamma, oracle_gain, oracle_speedup, speedup


@given(st.floats(0.01, 0.99), st.floats(0, 1))
@settings(max_examples=60)
def test_drafting_helps_exactly_if_alpha_exceeds_c(alpha, c):
    best = optimal_gamma(alpha, c, max_gamma=50)
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
    assert oracle_speedup(alpha, c) == pytest.approx(rate, abs=5 * spread)


@given(st.floats(0.0, 1.0), st.floats(0.001, 1))
@settings(max_examples=20)
def test_no_oracle_gains_more_than_the_paper_says(alpha, c):
    """Section 3.5 says up to about 60%; the exact limit is e / (e - 1)."""
    gain = oracle_gain(alpha, c, max_gamma=6000)
    assert 1 - 1e-9 <= gain < np.e / (np.e - 1)


def test_the_limit_of_the_oracle_is_nearly_reached():
    assert oracle_gain(1 - (np.e - 2) * 1e-3, 1e-3) == pytest.approx(np.e / (np.e - 1), abs=5e-4)


def test_a_free_perfect_drafter_runs_into_the_search_limit():
    best = optimal_gamma(1, 0, max_gamma=30)
    assert (best.gamma, best.speedup) == (30, 31)


def test_arguments_broadcast_and_gamma_zero_costs_nothing():
    np.testing.assert_allclose(speedup(0.8, [0, 5], 0.0), [1, 3.68928])
    assert speedup(0.8, 5, 0.1, 1.5) == pytest.approx(tokens_per_round(0.8, 5) / 2)


def test_the_longest_of_a_batch_is_counted_out():
    shares = [0.5, 0.2, 0.3]
    pairs = {(i, j): a * b for i, a in enumerate(shares) for j, b in enumerate(shares)}
    counted = [sum(chance for pair, chance in pairs.items() if max(pair) == k) for k in range(3)]
    assert longest_of_batch(shares, 2) == pytest.approx(counted)
    assert longest_of_batch(shares, 1) == pytest.approx(shares)
    assert longest_of_batch(shares, [1, 64])[1] == pytest.approx([0, 0, 1], abs=1e-9)
