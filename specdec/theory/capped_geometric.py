"""The capped-geometric model (theory.md 2.1 and 2.3): every draft token is accepted with the same alpha, independently.

A round that offers gamma tokens accepts A of them and yields T = A + 1; P(A = k) = alpha^k (1 - alpha) below
gamma and alpha^gamma at gamma (Leviathan et al. 2211.17192, eq. 1). Arguments broadcast; alpha may be exactly
0 or 1. ValueError for an alpha outside [0, 1] or a gamma that is not a whole number of at least 0.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from specdec.theory.arguments import FloatArray, Values, count, probability


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


def accepted_per_offered(alpha: ArrayLike, gamma: ArrayLike) -> Values:
    """Return accepted over offered draft tokens, (Omega - 1) / gamma, which is not alpha. ValueError for gamma 0."""
    length = count(gamma, "gamma", minimum=1)
    return (tokens_per_round(alpha, length) - 1) / length


def product_identity(hazards: ArrayLike) -> Values:
    """Return E[A + 1] = 1 + sum_{k<=gamma} prod_{j<=k} h_j for h [..., gamma], h_k = P(accept k | reached k). It holds
    whatever the dependence between acceptances (theory.md 4.1).
    """
    return (1 + np.cumprod(probability(hazards, "hazards"), axis=-1).sum(axis=-1))[()]


def tokens_per_round_rows(alpha: ArrayLike, width: int, rows: ArrayLike) -> Values:
    """Return the expected tokens of a round with k independent rows of width w: (w + 1) - sum_{i<=w} (1 - alpha^i)^k.

    Rows are i.i.d. draws; rows whose first tokens are distinct (top-k) follow another law (theory.md 2.4).
    """
    chance, k = np.broadcast_arrays(probability(alpha, "alpha"), count(rows, "rows"))
    i = np.arange(1, int(count(width, "width")) + 1)
    return (1 + (1 - (1 - chance[..., None] ** i) ** k[..., None]).sum(axis=-1))[()]
