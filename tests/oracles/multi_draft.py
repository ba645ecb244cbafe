"""Several drafts for one position (theory.md 1.4): the chance that one of them is accepted.

The verifiers are tested against it. `p` and `q` [V] are the laws of target and drafter at the position, `drafts` is K.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from specdec.theory.arguments import FloatArray, law


def multi_round(p: ArrayLike, q: ArrayLike, drafts: int) -> float:
    """Test drafts that are drawn independently from q, one after another (SpecInfer 2305.09781).

    A draft is accepted with min(1, p / q); after a rejection p becomes norm((p - q)_+). The tests are independent,
    because what is left of p does not depend on which token was rejected.
    """
    target, drafter = law(p, "p"), law(q, "q")
    rejected = 1.0
    for _ in range(drafts):
        rejected *= 1 - float(np.minimum(target, drafter).sum())
        left = np.maximum(target - drafter, 0)
        target = left / left.sum()
    return 1 - rejected


def without_replacement(p: ArrayLike, q: ArrayLike, drafts: int) -> float:
    """Test distinct drafts that are drawn one after another from q (Sequoia 2402.12374; RSD 2402.14160).

    As `multi_round`, but a rejected token is also removed from q, which is renormalised. What is left of p depends on
    the tokens tried before, so that their orders are enumerated.
    """
    target, drafter = law(p, "p"), law(q, "q")
    accepted = float(np.minimum(target, drafter).sum())
    left = np.maximum(target - drafter, 0)
    if drafts == 1 or not left.any():
        return accepted
    for token, rejected in enumerate(np.maximum(drafter - target, 0)):
        rest = np.delete(drafter, token), np.delete(left, token)  # a rejected token has nothing left in p
        if rejected > 0 and rest[0].any():
            accepted += rejected * without_replacement(rest[1] / rest[1].sum(), rest[0] / rest[0].sum(), drafts - 1)
    return accepted


def k_seq(p: ArrayLike, q: ArrayLike, drafts: int) -> float:
    """Test independent drafts from q in turn, each accepted with min(1, p / (rho q)) (K-SEQ of SpecTr 2310.15141)."""
    target, drafter = law(p, "p"), law(q, "q")
    return _some_of(_k_seq_b(target, drafter, k_seq_rho(target, drafter, drafts)), drafts)


def k_seq_rho(p: ArrayLike, q: ArrayLike, drafts: int) -> float:
    """Return the rho in [1, K] with 1 - (1 - b)^K = rho b, b = sum min(p / rho, q): the least for which K-SEQ emits p.

    The left side falls with rho and the right side rises, so they cross once. Where p and q share no token every rho
    solves the equation, and K is returned.
    """
    target, drafter = law(p, "p"), law(q, "q")

    def surplus(rho: float) -> float:
        b = _k_seq_b(target, drafter, rho)
        return _some_of(b, drafts) - rho * b

    if surplus(1.0) <= 0:  # one draft, or p = q
        return 1.0 if _k_seq_b(target, drafter, 1.0) > 0 else float(drafts)
    if surplus(drafts) >= 0:  # b is so small that both sides agree to the last digit
        return float(drafts)
    return float(brentq(surplus, 1.0, drafts, xtol=1e-14, rtol=1e-14))


def _some_of(chance: float, drafts: int) -> float:
    """Return 1 - (1 - chance)^K without losing the digits of a small chance."""
    return 1.0 if chance >= 1 else float(-np.expm1(drafts * np.log1p(-chance)))


def _k_seq_b(target: FloatArray, drafter: FloatArray, rho: float) -> float:
    return float(np.minimum(target / rho, drafter).sum())
