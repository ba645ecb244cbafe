"""Rounds of whole texts in closed form (theory.md 2.3, 4.2, 4.3 and 4.6)."""

import numpy as np
from numpy.typing import ArrayLike

from specdec.theory.arguments import FloatArray, Values, count, probability
from specdec.theory.capped_geometric import accepted_pmf, tokens_per_round


def expected_rounds(alpha: float, gamma: int, tokens: int) -> FloatArray:
    """Return R(0 ... tokens) [tokens + 1], the expected rounds to write an output of exactly n tokens.

    R(n) = 1 + sum_{k<gamma} alpha^k (1 - alpha) R(n-k-1) + alpha^gamma R(n-gamma-1), R(n <= 0) = 0. O(tokens gamma).
    """
    pmf, length = accepted_pmf(alpha, gamma), int(count(tokens, "tokens"))
    rounds = np.zeros(length + 1)
    for n in range(1, length + 1):
        reach = min(n, len(pmf))
        rounds[n] = 1 + pmf[:reach] @ rounds[n - reach : n][::-1]
    return rounds


def finite_tokens_per_round(alpha: float, gamma: int, lengths: ArrayLike) -> float:
    """Return sum N / sum R(N), the pooled tokens per round of outputs with N = `lengths` [P] tokens."""
    sizes = count(lengths, "lengths", minimum=1).astype(np.int64).ravel()
    rounds = expected_rounds(alpha, gamma, int(sizes.max()))
    return float(sizes.sum() / rounds[sizes].sum())


def replay_rounds(m: ArrayLike, gamma: int) -> float:
    """Return V(1), the expected rounds in which a text is written whose token t passes its test with chance m_t, m [N]
    (theory.md 4.2).
    """
    chances, size = probability(m, "m"), len(np.asarray(m))
    ahead, value = np.append(chances, np.zeros(gamma)), np.zeros(size + gamma + 1)  # nothing is accepted behind the end
    for t in reversed(range(size)):
        passed = np.cumprod([1.0, *ahead[t : t + gamma]])  # chance that the first k are accepted
        value[t] = 1 + (passed - np.append(passed[1:], 0.0)) @ value[t + 1 : t + gamma + 2]
    return float(value[0])


def greedy_rounds(agreement: ArrayLike, gamma: int) -> int:
    """Return the rounds of a greedy drafter that agrees with the text where `agreement` [N] is 1 (theory.md 4.3).

    A run of L ones and the zero behind it take ceil((L + 1) / (gamma + 1)) rounds; a last run of r ones
    without a zero takes ceil(r / (gamma + 1)).
    """
    bits, cap = np.asarray(agreement), int(count(gamma, "gamma"))
    closed_by = np.flatnonzero(bits == 0)
    stretches = np.diff(np.concatenate(([-1], closed_by, [len(bits) - 1])))  # L + 1 each; the last is r
    return int(np.ceil(stretches / (cap + 1)).sum())


def markov_tokens_per_round(a01: ArrayLike, a11: ArrayLike, gamma: ArrayLike) -> Values:
    """Return the long-run tokens per round when agreement along the text is a two-state Markov chain (theory.md 4.6).

    With a01 = P(1 | 0) and a11 = P(1 | 1): (1 + a01 / (1 - a11)) / (1 + a01 a11^gamma / (1 -
    a11^(gamma+1))), numerator and denominator times 1 - a11, so that a11 = 1 gives gamma + 1.
    """
    rise, stay = np.broadcast_arrays(probability(a01, "a01"), probability(a11, "a11"))
    cap = count(gamma, "gamma")
    full = rise * stay**cap / tokens_per_round(stay, cap)
    return ((1 - stay + rise) / (1 - stay + full))[()]
