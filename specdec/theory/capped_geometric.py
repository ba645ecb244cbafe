"""The capped-geometric model: every draft token is accepted with the same alpha, independently; tokens per round
(theory.md 2.1 and 2.3), speedup and operations (2.2), and the speedup in a batch of B sequences (7.3).

A round that offers gamma tokens accepts A of them and yields T = A + 1; P(A = k) = alpha^k (1 - alpha) below
gamma and alpha^gamma at gamma (Leviathan et al. 2211.17192, eq. 1). Times are in units of one target call on one token:
c is one drafter step, v the verification of gamma + 1 tokens. In a batch they are in units of one plain step of all
sequences, t(B): c is one drafter step for all of them, v the call on B (gamma + 1) tokens. Arguments broadcast; alpha
may be exactly 0 or 1. ValueError for an argument outside its range, such as a gamma that is not a whole number.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specdec.theory.arguments import FloatArray, Values, count, law, nonnegative, positive, probability


def accepted_pmf(alpha: float, gamma: int) -> FloatArray:
    """Return P(A = 0 ... gamma) [gamma + 1], for one alpha and one gamma."""
    chance, length = float(probability(alpha, "alpha")), int(count(gamma, "gamma"))
    pmf = chance ** np.arange(length + 1)
    pmf[:-1] *= 1 - chance
    return np.asarray(pmf, dtype=np.float64)


def tokens_per_round(alpha: ArrayLike, gamma: ArrayLike) -> Values:
    """Return Omega = E[T] = (1 - alpha^(gamma+1)) / (1 - alpha); gamma may be infinite (2211.17192, eq. 1)."""
    chance, terms = probability(alpha, "alpha"), count(gamma, "gamma", infinite=True) + 1
    with np.errstate(divide="ignore", invalid="ignore"):  # log 0, 0 * inf and 0 / 0 are replaced
        total = -np.expm1(terms * np.log(chance)) / (1 - chance)  # accurate for alpha next to 1
    return np.where((chance == 1) | (terms <= 1), terms, total)[()]  # and these exactly


def tokens_per_round_slope(alpha: ArrayLike, gamma: ArrayLike) -> Values:
    """Return d Omega / d alpha = sum_{k<=gamma} k alpha^(k-1), for finite gamma."""
    chance, length = np.broadcast_arrays(probability(alpha, "alpha"), count(gamma, "gamma"))
    k = np.arange(1, int(length.max(initial=0)) + 1)
    return np.where(k <= length[..., None], k * chance[..., None] ** (k - 1), 0.0).sum(axis=-1)[()]


def alpha_for(tokens: float, offered: Mapping[int, float]) -> float | None:
    """Return the smallest alpha at which rounds that offer these shares (tokens offered: share of rounds) yield
    `tokens`: the mean of Omega(alpha, offered), which grows with alpha, is solved by bisection. None where alpha = 1 is
    not enough.
    """

    def mean(alpha: float) -> float:
        return sum(share * float(tokens_per_round(alpha, size)) for size, share in offered.items())

    low, high = 0.0, 1.0
    if mean(high) < tokens:
        return None
    if mean(low) >= tokens:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if mean(middle) < tokens else (low, middle)
    return high


def product_identity(hazards: ArrayLike) -> Values:
    """Return E[A + 1] = 1 + sum_{k<=gamma} prod_{j<=k} h_j for h [..., gamma], h_k = P(accept k | reached k), however
    acceptances depend on each other (theory.md 4.1).
    """
    return (1 + np.cumprod(probability(hazards, "hazards"), axis=-1).sum(axis=-1))[()]


def tokens_per_round_rows(alpha: ArrayLike, width: int, rows: ArrayLike) -> Values:
    """Return the expected tokens of a round with k independent rows of width w: (w + 1) - sum_{i<=w} (1 - alpha^i)^k.
    Rows are i.i.d. draws; rows whose first tokens are distinct (top-k) follow another law (theory.md 2.4).
    """
    chance, k = np.broadcast_arrays(probability(alpha, "alpha"), count(rows, "rows"))
    i = np.arange(1, int(count(width, "width")) + 1)
    return (1 + (1 - (1 - chance[..., None] ** i) ** k[..., None]).sum(axis=-1))[()]


def speedup(alpha: ArrayLike, gamma: ArrayLike, c: ArrayLike, v: ArrayLike = 1.0) -> Values:
    """Return Omega / (v + gamma c), the time per token of plain over that of speculative decoding (Theorem 3.8)."""
    return batch_speedup(tokens_per_round(alpha, gamma), gamma, c, v)


def batch_speedup(tokens: ArrayLike, gamma: ArrayLike, c: ArrayLike, v: ArrayLike) -> Values:
    """Return E / (v + gamma c), speculative over plain throughput at equal batch. `tokens` are those that a sequence
    gains in a round, E; for a plain step every sequence counts one.
    """
    return positive(tokens, "tokens") / (positive(v, "v") + count(gamma, "gamma") * nonnegative(c, "c"))


def longest_of_batch(shares: ArrayLike, batch: ArrayLike) -> Values:
    """Return the law [..., K + 1] of the longest of B drafts whose lengths 0 to K are independent and have the law
    `shares` [K + 1]: F(k)^B - F(k - 1)^B. A call is as wide as the longest draft of the batch, so that a drafter which
    offers now little, now much, pays for much in every call of a large batch.
    """
    below = np.cumsum(law(shares, "shares")).clip(0.0, 1.0)
    below[..., -1] = 1.0
    powers = below ** np.expand_dims(count(batch, "batch", minimum=1), -1)
    return np.diff(powers, axis=-1, prepend=0.0)


def operations(alpha: ArrayLike, gamma: ArrayLike, c_ops: ArrayLike) -> Values:
    """Return (gamma c_ops + gamma + 1) / Omega, the operations over those of plain decoding (Theorem 3.11). c_ops is
    the drafter's operations per token over the target's.
    """
    length = count(gamma, "gamma")
    return (length * nonnegative(c_ops, "c_ops") + length + 1) / tokens_per_round(alpha, length)


@dataclass(frozen=True)
class OptimalGamma:
    """The gamma with the highest speedup; gamma 0 with speedup 1 means that drafting does not pay."""

    gamma: int
    speedup: float


def optimal_gamma(
    alpha: float, c: float, verification: Callable[[int], float] | None = None, max_gamma: int = 200
) -> OptimalGamma:
    """Find the gamma in 0 ... max_gamma that maximises Omega / (v(gamma) + gamma c); the shortest of equals.
    `verification(gamma)` is v for gamma = 1 ... max_gamma; without it v is 1.
    """
    gammas = np.arange(int(count(max_gamma, "max_gamma", minimum=1)) + 1)
    v = np.ones(len(gammas)) if verification is None else np.array([1.0, *map(verification, gammas[1:].tolist())])
    speedups = speedup(alpha, gammas, c, v)
    best = int(np.argmax(speedups))
    return OptimalGamma(best, float(speedups[best]))


def oracle_speedup(alpha: ArrayLike, c: ArrayLike) -> Values:
    """Return 1 / (1 - alpha + c alpha), the speedup if every round drafts exactly what will be accepted (3.5).

    Such a round yields 1 / (1 - alpha) tokens and takes alpha / (1 - alpha) drafter steps on average, and one call of
    the target. No choice of gamma by round is faster. It is infinite for a free drafter that is always accepted.
    """
    chance = probability(alpha, "alpha")
    with np.errstate(divide="ignore"):
        return (1 / (1 - chance + nonnegative(c, "c") * chance))[()]


def oracle_gain(alpha: float, c: float, max_gamma: int = 2000) -> float:
    """Return the speedup with an oracle for gamma over that of the best fixed gamma (2211.17192, 3.5), at least 1.

    It stays below e / (e - 1) = 1.58, and comes close where c is small and alpha near 1 - 0.72 c; `max_gamma` has to
    reach the best fixed gamma there. For a free drafter it is 1: the longest draft costs as little as the oracle's.
    """
    if float(nonnegative(c, "c")) == 0:
        return 1.0
    return float(oracle_speedup(alpha, c)) / optimal_gamma(alpha, c, max_gamma=max_gamma).speedup
