"""The speedup in a batch of B sequences (theory.md 7.3): t(B (gamma + 1)) / t(B) takes the place of v.

`tokens` are those that a sequence gains in a round, E; times are in units of one plain step of the whole batch, t(B): c
is one drafter step for all B sequences, v the verification of B drafts of gamma tokens with their roots. Every sequence
counts one token for a plain step, so the speedup at equal batch is the ratio of throughputs. ValueError for arguments
outside their range.
"""

import numpy as np
from numpy.typing import ArrayLike

from specdec.theory.arguments import Values, count, law, nonnegative, positive


def batch_speedup(tokens: ArrayLike, gamma: ArrayLike, c: ArrayLike, v: ArrayLike) -> Values:
    """Return E / (v + gamma c), speculative over plain throughput at equal batch."""
    return positive(tokens, "tokens") / (positive(v, "v") + count(gamma, "gamma") * nonnegative(c, "c"))


def verification_ratio(batch: ArrayLike, gamma: ArrayLike, fixed: ArrayLike, token: ArrayLike) -> Values:
    """Return v = t(B (gamma + 1)) / t(B) where a call on n tokens takes t(n) = fixed + token n.

    It rises from (fixed + token (gamma + 1)) / (fixed + token) at B = 1 to gamma + 1: what is shared by the tokens of a
    call is spent on the batch before speculation can spend it.
    """
    sequences, offered = count(batch, "batch", minimum=1), count(gamma, "gamma") + 1
    shared, each = nonnegative(fixed, "fixed"), positive(token, "token")
    return (shared + each * sequences * offered) / (shared + each * sequences)


def break_even_batch(tokens: ArrayLike, gamma: ArrayLike, c: ArrayLike, spare: ArrayLike) -> Values:
    """Return the batch at which E / (v + gamma c) = 1 where t(n) = fixed + token n; below it speculation pays.

    With x = E - gamma c, the longest verification that still pays, it is spare (x - 1) / (gamma + 1 - x). It is 0 where
    no batch pays (x at most 1), and infinite where all do (x at least gamma + 1: a free drafter that is always right).

    Args:
        spare: fixed / token, the number of tokens whose own time equals the shared time of a call.
    """
    offered, affordable = count(gamma, "gamma", minimum=1) + 1, _affordable(tokens, gamma, c)
    with np.errstate(divide="ignore", invalid="ignore"):
        batch = positive(spare, "spare") * (affordable - 1) / (offered - affordable)
    return np.where(affordable <= 1, 0.0, np.where(affordable >= offered, np.inf, batch))[()]


def roofline_break_even_batch(tokens: ArrayLike, gamma: ArrayLike, c: ArrayLike, ridge: ArrayLike) -> Values:
    """Return the same batch where reading and computing overlap: t(n) is flat up to n* tokens, then proportional to n.

    v is 1 up to B = n* / (gamma + 1) and gamma + 1 from B = n* on; in between it is B (gamma + 1) / n*, so that the
    batch is n* x / (gamma + 1) with x = E - gamma c. 0 where x is at most 1, infinite where it is at least gamma + 1.

    Args:
        ridge: n*, see `roofline.ridge_rows`.
    """
    offered, affordable = count(gamma, "gamma", minimum=1) + 1, _affordable(tokens, gamma, c)
    batch = positive(ridge, "ridge") * affordable / offered
    return np.where(affordable <= 1, 0.0, np.where(affordable >= offered, np.inf, batch))[()]


def _affordable(tokens: ArrayLike, gamma: ArrayLike, c: ArrayLike) -> Values:
    """Return E - gamma c: the longest verification, in plain steps, at which the speedup is still 1."""
    return positive(tokens, "tokens") - count(gamma, "gamma") * nonnegative(c, "c")


def longest_of_batch(shares: ArrayLike, batch: ArrayLike) -> Values:
    """Return the law [..., K + 1] of the longest of B drafts whose lengths 0 to K are independent and have the law
    `shares` [K + 1]: F(k)^B - F(k - 1)^B. A call is as wide as the longest draft of the batch, so that a drafter which
    offers now little, now much, pays for much in every call of a large batch.
    """
    below = np.cumsum(law(shares, "shares")).clip(0.0, 1.0)
    below[..., -1] = 1.0
    powers = below ** np.expand_dims(count(batch, "batch", minimum=1), -1)
    return np.diff(powers, axis=-1, prepend=0.0)
