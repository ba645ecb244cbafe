"""The capped-geometric model: sums over the pmf, limits, and a simulation."""

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
