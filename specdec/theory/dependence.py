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


def replay_rounds_by_start(m: ArrayLike) -> float:
    """Return the expected rounds to write one given text of N tokens, of a drafter whose proposal depends on the text
    before it and on where its round began: V_t = 1 + sum_k P_t(k) V_{t+k+1}, where a round that begins at t accepts k
    tokens with chance P_t(k) = prod_{j<k} m_{t,j} (1 - m_{t,k}), and all gamma with chance prod_j m_{t,j}.

    theory.md 4.2 with m_{t+j} replaced by m_{t,j}, and for the same reason: given the text, min(q, p) of a token over p
    is the chance that it was drafted and accepted, and the rest of p is the chance that it came from the residual.

    Args:
        m: [N, gamma] min(1, q/p) of token t+j in a chain that began at t; 0 where nothing is offered, and beyond the
            text.
    """
    chances = probability(m, "m")
    if chances.ndim != 2:
        raise ValueError(f"m must be a table [N, gamma] of probabilities, got shape {chances.shape}")
    size, gamma = chances.shape
    passed = np.cumprod(np.column_stack([np.ones(size), chances]), axis=1)
    exactly = passed - np.column_stack([passed[:, 1:], np.zeros(size)])
    value = np.zeros(size + gamma + 1)  # V; beyond the text 0
    for start in reversed(range(size)):
        value[start] = 1 + exactly[start] @ value[start + 1 : start + gamma + 2]
    return float(value[0])
