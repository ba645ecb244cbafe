"""The experts that a call on several tokens reads (theory.md 7.6), by which a mixture's weights grow with tokens."""

import numpy as np
from numpy.typing import ArrayLike

from specdec.theory.arguments import Values, count, probability


def distinct_experts(chances: ArrayLike, tokens: ArrayLike) -> Values:
    """Return the expected number of distinct experts that independent tokens choose, sum over e of 1 - (1 - p_e)^n.

    It holds for any way in which one token chooses a set of experts, because expectations add up (occupancy; for equal
    chances k / E it is E (1 - (1 - k / E)^n), MoESD, 2505.19645).

    Args:
        chances: [..., E] the chance p_e that a token chooses expert e; they sum to the k that each token chooses.
        tokens: n, whole numbers [...] that broadcast with the leading axes of `chances`.
    Raises:
        ValueError: a chance outside [0, 1], or an n that is no whole number of at least 0.
    """
    spared = (1 - probability(chances, "chances")) ** np.expand_dims(count(tokens, "tokens"), -1)
    return (1 - spared).sum(axis=-1)[()]
