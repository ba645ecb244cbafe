"""Theory without independence: replay against simulation, against enumeration and against its special cases."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.rounds import expected_rounds, greedy_rounds, markov_tokens_per_round

from specdec.theory.capped_geometric import tokens_per_round
from specdec.theory.dependence import product_identity, replay_rounds, replay_rounds_by_start

M = np.array([0.9, 0.5, 1.0, 0.2, 0.8, 0.7])


def simulated_rounds(m: np.ndarray, gamma: int, texts: int, seed: int) -> np.ndarray:
    """Rounds [texts] of the process itself: from each round's start, accept until a failure, the cap or the
    end.
    """
    coins = np.random.default_rng(seed).random((texts, len(m))) < m
    counts = np.zeros(texts)
    for text, accepts in enumerate(coins):
        start = 0
        while start < len(m):
            ahead = accepts[start : start + gamma]
            start += (len(ahead) if ahead.all() else int(np.argmin(ahead))) + 1
            counts[text] += 1
    return counts


def test_constant_hazards_are_the_capped_geometric_model():
    np.testing.assert_allclose(product_identity(np.full((3, 5), 0.8)), tokens_per_round(0.8, 5))
    assert replay_rounds(np.full(32, 0.8), 5) == pytest.approx(expected_rounds(0.8, 5, 32)[32])


def test_replay_takes_every_gamma_in_one_pass():
    np.testing.assert_allclose(replay_rounds(M, [[1, 2], [3, 10]]), [[3.298, 3.14], [2.698, 2.6]])
    assert replay_rounds(M, 0) == len(M)
    assert replay_rounds([], 3) == 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.integers(0, 14))
@settings(max_examples=150, deadline=None)
def test_replay_satisfies_its_recursion(m, gamma):
    """V by the formula of theory.md 4.2, term by term."""
    n = len(m)
    value = np.zeros(n + gamma + 3)  # V at positions 0 ... n-1, zero behind the end
    chance = np.append(m, np.zeros(gamma + 2))  # behind the end the value is 0 whatever is accepted
    for t in range(n - 1, -1, -1):
        value[t] = 1
        for k in range(gamma):
            value[t] += np.prod(chance[t : t + k]) * (1 - chance[t + k]) * value[t + k + 1]
        value[t] += np.prod(chance[t : t + gamma]) * value[t + gamma + 1]
    assert replay_rounds(m, gamma) == pytest.approx(value[0], rel=1e-9)


def test_replay_against_simulation():
    """4,000 texts of 30 tokens: mean rounds within 5 standard errors (false alarm 6e-7)."""
    m = np.random.default_rng(1).beta(2, 1, size=30)
    rounds = simulated_rounds(m, 3, 4_000, seed=2)
    se = rounds.std() / np.sqrt(len(rounds))
    assert abs(rounds.mean() - replay_rounds(m, 3)) < 5 * se


def test_replay_by_start_against_every_outcome_of_the_coins():
    """A table m_{t,j} of five tokens and chains of two: the rounds of all outcomes, weighed by their chances."""
    m = np.random.default_rng(6).uniform(0.1, 0.9, size=(5, 2))
    m[4, 1] = 0.0  # beyond the text
    expected = 0.0
    for outcome in product((0, 1), repeat=m.size):
        coins = np.reshape(outcome, m.shape)
        position = rounds = 0
        while position < len(m):
            position += 1 + (coins[position, 0] + coins[position, 0] * coins[position, 1])
            rounds += 1
        expected += rounds * np.prod(np.where(coins, m, 1 - m))
    assert replay_rounds_by_start(m) == pytest.approx(expected)


def test_replay_by_start_is_replay_where_the_start_does_not_matter():
    m = np.append(M, np.zeros(3))
    table = np.stack([m[j : j + len(M)] for j in range(3)], axis=1)
    assert replay_rounds_by_start(table) == pytest.approx(2.698)


@given(st.lists(st.integers(0, 1), max_size=40), st.integers(0, 10))
@settings(max_examples=200, deadline=None)
def test_greedy_runs_are_replay_with_zeros_and_ones(bits, gamma):
    assert greedy_rounds(bits, gamma) == pytest.approx(replay_rounds(np.array(bits, dtype=float), gamma))


def test_markov_chain_against_a_long_greedy_text():
    """200,000 tokens of the chain, rounds by greedy runs: within 2.5% (5.8 standard errors, 1e-8)."""
    a01, a11, gamma, n = 0.5, 0.9, 5, 200_000
    uniforms = np.random.default_rng(3).random(n)
    bits, state = np.zeros(n, dtype=int), 1
    for t, uniform in enumerate(uniforms):
        state = int(uniform < (a11 if state else a01))
        bits[t] = state
    assert n / greedy_rounds(bits, gamma) == pytest.approx(markov_tokens_per_round(a01, a11, gamma), rel=0.025)


def test_markov_limits():
    assert markov_tokens_per_round(0.7, 0.7, 4) == pytest.approx(tokens_per_round(0.7, 4))  # independent
    assert markov_tokens_per_round(0.5, 1.0, 4) == 5 and markov_tokens_per_round(0.0, 0.5, 4) == 1
    alpha = 0.5 / (1 - 0.9 + 0.5)  # mean agreement along the text
    assert markov_tokens_per_round(0.5, 0.9, 2_000) == pytest.approx(1 / (1 - alpha))  # no cap, no dependence
    with pytest.raises(ValueError, match="never changes state"):
        markov_tokens_per_round(0.0, 1.0, 3)


def test_differences_between_texts_lower_pooled_tokens_per_round():
    """1 / Omega is convex in alpha (theory.md 4.5)."""
    alphas = np.random.default_rng(4).beta(6, 2, size=1_000)
    pooled = 1 / np.mean(1 / tokens_per_round(alphas, 5))
    assert pooled < tokens_per_round(alphas.mean(), 5) - 0.05


def test_out_of_range_arguments_are_refused():
    with pytest.raises(ValueError, match="m must lie between 0 and 1"):
        replay_rounds([0.5, 1.2], 2)
    with pytest.raises(ValueError, match="one vector"):
        replay_rounds(np.ones((2, 2)), 2)
    with pytest.raises(ValueError, match="zeros and ones"):
        greedy_rounds([0, 1, 2], 2)
    with pytest.raises(ValueError, match="hazards"):
        product_identity([0.5, -0.1])
