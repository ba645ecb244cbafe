"""What holds when acceptances are not independent (THEORY 4): the product identity, replay, runs, a Markov
chain.
"""

import numpy as np
from numpy.typing import ArrayLike

from specdec.theory.arguments import Values, count, probability
from specdec.theory.capped_geometric import tokens_per_round


def product_identity(hazards: ArrayLike) -> Values:
    """E[A + 1] = 1 + sum_{k<=gamma} prod_{j<=k} h_j for h [..., gamma], h_k = P(accept k | reached k). Always
    exact.
    """
    return (1 + np.cumprod(probability(hazards, "hazards"), axis=-1).sum(axis=-1))[()]


def replay_rounds(m: ArrayLike, gamma: ArrayLike) -> Values:
    """V_1: expected rounds to write one given text of N tokens, for one gamma or an array of them (THEORY
    4.2).

    m [N] is the chance that the text's token at each position is accepted when tested, min(1, q/p), 0 or 1
    when greedy. Holds for a drafter whose proposal depends on the text before it alone. O(N gamma): with
    U_t(k) the expected rounds still to begin when position t is next and k drafts of this round are accepted,
    U_t(k) = m_t U_{t+1}(k+1) + (1 - m_t) V_{t+1} below gamma, U_t(gamma) = V_{t+1}, and V_t = 1 + U_t(0).
    """
    chances, gammas = probability(m, "m"), count(gamma, "gamma")
    if chances.ndim != 1:
        raise ValueError(f"m must be one row of probabilities, got shape {chances.shape}")
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


def uncapped_rounds(m: ArrayLike) -> float:
    """V_1 without a cap (gamma at least N): 1 + sum_{t<N} (1 - m_t), so dependence plays no part (THEORY
    4.4).
    """
    chances = probability(m, "m")
    if chances.ndim != 1 or chances.size == 0:
        raise ValueError(f"m must be one non-empty row of probabilities, got shape {chances.shape}")
    return float(1 + (1 - chances[:-1]).sum())


def greedy_rounds(agreement: ArrayLike, gamma: int) -> int:
    """Rounds of a greedy drafter that agrees with the text where `agreement` [N] is 1 (THEORY 4.3).

    Runs of L ones closed by a zero take ceil((L + 1) / (gamma + 1)) rounds, an unclosed last run of r ones
    ceil(r / (gamma + 1)). ValueError for anything but zeros and ones.
    """
    bits, cap = np.asarray(agreement), int(count(gamma, "gamma"))
    if bits.ndim != 1 or not np.isin(bits, (0, 1)).all():
        raise ValueError("agreement must be one row of zeros and ones")
    closed_by = np.flatnonzero(bits == 0)
    stretches = np.diff(np.concatenate(([-1], closed_by, [len(bits) - 1])))  # L + 1 each; the last is r
    return int(np.ceil(stretches / (cap + 1)).sum())


def markov_alpha(a01: ArrayLike, a11: ArrayLike) -> Values:
    """Mean agreement a01 / (1 - a11 + a01) of a two-state chain, a01 = P(1 | 0), a11 = P(1 | 1) (THEORY 4.6).

    ValueError if a01 = 0 and a11 = 1: the mean then depends on where the chain starts.
    """
    rise, stay = _markov(a01, a11)
    return (rise / (1 - stay + rise))[()]


def markov_tokens_per_round(a01: ArrayLike, a11: ArrayLike, gamma: ArrayLike) -> Values:
    """Long-run tokens per round when agreement along the text is that two-state chain (THEORY 4.6).

    (1 + a01 / (1 - a11)) / (1 + a01 a11^gamma / (1 - a11^(gamma+1))), both sides times 1 - a11 so that a11 =
    1 gives gamma + 1.
    """
    rise, stay = _markov(a01, a11)
    cap = count(gamma, "gamma")
    full = rise * stay**cap / tokens_per_round(stay, cap)
    return ((1 - stay + rise) / (1 - stay + full))[()]


def _markov(a01: ArrayLike, a11: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    rise, stay = np.broadcast_arrays(probability(a01, "a01"), probability(a11, "a11"))
    if np.any((rise == 0) & (stay == 1)):
        raise ValueError("a01 = 0 with a11 = 1 never changes state, so its long-run mean is not defined")
    return rise, stay
