"""Laws of the acceptance rules, and losslessness by enumeration; test_theory_page.py has the values of theory.md."""

from itertools import product

import numpy as np
import pytest
from oracles.acceptance import beta, block_weights, expected_accepted, residual

MARKOV_P = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]])
MARKOV_Q = np.array([[0.4, 0.4, 0.2], [0.2, 0.5, 0.3], [0.5, 0.2, 0.3]])
START_P, START_Q = np.array([0.5, 0.3, 0.2]), np.array([0.3, 0.3, 0.4])


def random_laws(seed: int, count: int, vocabulary: int = 5) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(vocabulary, 0.5), size=count)


def test_speculative_sampling_emits_p():
    p, q = random_laws(2, 50), random_laws(3, 50)
    emitted = q * np.minimum(1, p / q) + (1 - beta(p, q))[:, None] * residual(p, q)
    np.testing.assert_allclose(emitted, p, atol=1e-12)


def conditionals(start: np.ndarray, step: np.ndarray, path: tuple[int, ...]) -> np.ndarray:
    """Laws [len(path) + 1, V] at every position of a path."""
    return np.stack([start, *(step[token] for token in path)])


def test_block_verification_is_lossless_and_reaches_its_expected_length():
    """Every draft of 3 tokens, every tau, every emitted token, completed by the target: the joint law is the
    target's.
    """
    gamma, vocabulary = 3, 3
    joint = np.zeros((vocabulary,) * (gamma + 1))
    expected_tau = 0.0
    for path in product(range(vocabulary), repeat=gamma):
        p, q = conditionals(START_P, MARKOV_P, path), conditionals(START_Q, MARKOV_Q, path)
        drawn = np.prod(q[np.arange(gamma), path])
        rule = block_weights(p[:gamma], q[:gamma], path)
        pmf = rule.accepted_pmf()
        assert pmf.sum() == pytest.approx(1)
        expected_tau += drawn * pmf @ np.arange(gamma + 1)
        for tau, chance in enumerate(pmf):
            if chance == 0:
                continue
            surplus = np.maximum(rule.weights[tau] * p[tau] - q[tau], 0) if tau < gamma else p[gamma]
            if tau < gamma:
                assert surplus.sum() == pytest.approx(rule.surplus[tau])
            for token, emitted in enumerate(surplus / surplus.sum()):
                law = np.array(drawn * chance * emitted)
                last = token
                for _ in range(gamma - tau):  # the rest of the text is the target's own
                    law = law[..., None] * (MARKOV_P[last] if law.ndim == 0 else MARKOV_P)
                joint[(*path[:tau], token)] += law
    target = START_P[:, None, None, None] * MARKOV_P[:, :, None, None] * MARKOV_P[:, :, None] * MARKOV_P
    np.testing.assert_allclose(joint, target, atol=1e-12)
    expected = expected_accepted(START_P, START_Q, MARKOV_P, MARKOV_Q, gamma)
    assert expected_tau == pytest.approx(expected.block, abs=1e-12)
