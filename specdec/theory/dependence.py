"""Closed forms for acceptances that are not independent (theory.md 4.1 to 4.6)."""

import numpy as np
from numpy.typing import ArrayLike

from specdec.theory.arguments import Values, count, probability


def product_identity(hazards: ArrayLike) -> Values:
    """Return E[A + 1] = 1 + sum_{k<=gamma} prod_{j<=k} h_j for h [..., gamma], h_k = P(accept k | reached k).

    It holds whatever the dependence.
    """
    return (1 + np.cumprod(probability(hazards, "hazards"), axis=-1).sum(axis=-1))[()]


def replay_rounds(m: ArrayLike, gamma: ArrayLike) -> Values:
    """Return V_1, the expected rounds to write one text of N tokens; gamma is a number or an array (theory.md 4.2).

    m [N] is the chance that the token at each position of the text is accepted when it is tested: min(1, q/p), and 0 or
    1 when greedy. It holds for drafters whose proposal depends on the text before it alone. O(N gamma): let U_t(k) be
    the expected rounds still to begin when position t is next and k drafts of this round are accepted; then U_t(k) =
    m_t U_{t+1}(k+1) + (1 - m_t) V_{t+1} below gamma, U_t(gamma) = V_{t+1}, and V_t = 1 + U_t(0).
    """
    chances, gammas = probability(m, "m"), count(gamma, "gamma")
    if chances.ndim != 1:
        raise ValueError(f"m must be one vector of probabilities, got shape {chances.shape}")
    if chances.size == 0:
        return np.zeros(gammas.shape)[()]
    caps = gammas.reshape(-1, 1)
    longest = min(int(caps.max(initial=0)), chances.size)  # no round accepts more tokens than the text has
    capped = np.arange(longest + 1) >= caps  # [G, longest + 1]
    ahead = np.zeros(capped.shape)  # U_{t+1}; its last column is never read below the cap
    value = np.zeros((len(caps), 1))  # V_{t+1}
    for chance in chances[::-1]:
        shifted = np.append(ahead[:, 1:], value, axis=1)
        ahead = np.where(capped, value, chance * shifted + (1 - chance) * value)
        value = 1 + ahead[:, :1]
    return value.reshape(gammas.shape)[()]
