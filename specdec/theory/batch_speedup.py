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


def longest_of_batch(shares: ArrayLike, batch: ArrayLike) -> Values:
    """Return the law [..., K + 1] of the longest of B drafts whose lengths 0 to K are independent and have the law
    `shares` [K + 1]: F(k)^B - F(k - 1)^B. A call is as wide as the longest draft of the batch, so that a drafter which
    offers now little, now much, pays for much in every call of a large batch.
    """
    below = np.cumsum(law(shares, "shares")).clip(0.0, 1.0)
    below[..., -1] = 1.0
    powers = below ** np.expand_dims(count(batch, "batch", minimum=1), -1)
    return np.diff(powers, axis=-1, prepend=0.0)
