"""Speedup and operations under the capped-geometric model (THEORY 2; Leviathan et al. 2211.17192, 3.3-3.5).

Times are in units of one target call on one token: c for one drafter step, v for the verification of gamma +
1 tokens. ValueError for arguments outside their range.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specdec.theory.arguments import Values, count, nonnegative, positive, probability
from specdec.theory.capped_geometric import tokens_per_round


def speedup(alpha: ArrayLike, gamma: ArrayLike, c: ArrayLike, v: ArrayLike = 1.0) -> Values:
    """Omega / (v + gamma c): time per token of plain decoding over that of speculative decoding (Theorem
    3.8).
    """
    cost = positive(v, "v") + count(gamma, "gamma") * nonnegative(c, "c")
    return tokens_per_round(alpha, gamma) / cost


def operations(alpha: ArrayLike, gamma: ArrayLike, c_ops: ArrayLike) -> Values:
    """(gamma c_ops + gamma + 1) / Omega: operations over those of plain decoding (Theorem 3.11).

    c_ops is the drafter's operations per token over the target's.
    """
    length = count(gamma, "gamma")
    return (length * nonnegative(c_ops, "c_ops") + length + 1) / tokens_per_round(alpha, length)


@dataclass(frozen=True)
class OptimalGamma:
    """The gamma with the highest speedup; gamma 0 and speedup 1 mean that drafting does not pay."""

    gamma: int
    speedup: float
    at_limit: bool  # the search ended at its largest gamma, so a longer draft may be better still


def optimal_gamma(
    alpha: float, c: float, verification: Callable[[int], float] | None = None, max_gamma: int = 200
) -> OptimalGamma:
    """Integer search for the gamma in 0 ... max_gamma that maximises Omega / (v(gamma) + gamma c).

    `verification(gamma)` is v for gamma = 1 ... max_gamma, 1 if not given. Of equal gammas the shortest wins.
    """
    gammas = np.arange(int(count(max_gamma, "max_gamma", minimum=1)) + 1)
    v = np.ones(len(gammas)) if verification is None else np.array([1.0, *map(verification, gammas[1:].tolist())])
    speedups = speedup(alpha, gammas, c, v)
    best = int(np.argmax(speedups))
    return OptimalGamma(best, float(speedups[best]), best == gammas[-1])


def oracle_speedup(alpha: ArrayLike, c: ArrayLike) -> Values:
    """Speedup of a drafter that knows how many tokens will be accepted and drafts no more (v = 1).

    (1 / (1 - alpha)) / (1 + c alpha / (1 - alpha)), written so that alpha = 1 gives 1 / c (infinite for c =
    0).
    """
    chance = probability(alpha, "alpha")
    with np.errstate(divide="ignore"):
        return np.divide(1.0, 1 - chance + nonnegative(c, "c") * chance)[()]


def total_speedup(decode_speedup: ArrayLike, prefill_share: ArrayLike) -> Values:
    """Speedup of prefill and decoding together, 1 / (f + (1 - f) / S); f is the baseline's share of time in
    prefill.
    """
    share = probability(prefill_share, "prefill_share")
    return (1 / (share + (1 - share) / positive(decode_speedup, "decode_speedup")))[()]
