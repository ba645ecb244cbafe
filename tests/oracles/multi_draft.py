"""Several drafts for one position (theory.md 1.4): the chance that one of them is accepted, and the law of the token.

The verifiers are tested against it. `p` and `q` [V] are the laws of target
and drafter at the position, `drafts` is K. Each rule emits exactly p. ValueError for laws that do not sum to 1 or
differ in length, and for K below 1.
"""

from dataclasses import dataclass
from math import perm

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from specdec.theory.arguments import FloatArray, count, law

MAX_VALUES = 5_000_000  # numbers in the laws after every order of rejected tokens; enumeration holds a few such arrays


@dataclass(frozen=True)
class MultiDraft:
    """The effect of a rule at one position.

    Attributes:
        acceptance: chance that one of the drafts is accepted.
        emitted: [V] law of the token at the position, accepted or not.
    """

    acceptance: float
    emitted: FloatArray


def multi_round(p: ArrayLike, q: ArrayLike, drafts: int) -> MultiDraft:
    """Test drafts that are drawn independently from q, one after another (SpecInfer 2305.09781).

    A draft is accepted with min(1, p / q); after a rejection p becomes norm((p - q)_+). The tests are independent,
    because what is left of p does not depend on which token was rejected.
    """
    target, drafter, rounds = _laws(p, q, drafts)
    reached = 1.0
    emitted = np.zeros_like(target)
    for _ in range(rounds):
        accepted = np.minimum(target, drafter)
        emitted += reached * accepted
        reached *= max(0.0, 1 - float(accepted.sum()))
        left = np.maximum(target - drafter, 0)
        if reached == 0 or left.sum() == 0:
            return MultiDraft(1.0, emitted)
        target = left / left.sum()
    return MultiDraft(1 - reached, emitted + reached * target)


def without_replacement(p: ArrayLike, q: ArrayLike, drafts: int) -> MultiDraft:
    """Test distinct drafts that are drawn one after another from q (Sequoia 2402.12374; RSD 2402.14160).

    As `multi_round`, but a rejected token is also removed from q, which is renormalised; once q is empty it is uniform
    over the untried tokens. What is left of p depends on the tokens tried before, so orders of rejected tokens are
    enumerated. ValueError for more drafts than tokens, and where the laws of all orders exceed MAX_VALUES numbers.
    """
    first, second, rounds = _laws(p, q, drafts)
    vocabulary = len(first)
    if rounds > vocabulary:
        raise ValueError(f"drafts must be at most the {vocabulary} tokens there are to draw, got {rounds}")
    orders = perm(vocabulary, rounds - 1)
    if orders * vocabulary > MAX_VALUES:
        raise ValueError(f"{orders} orders of rejected tokens are too many (at most {MAX_VALUES // vocabulary})")
    reached, target, drafter = np.ones(1), first[None], second[None]  # one entry for each order of rejected tokens
    untried = np.ones((1, vocabulary), dtype=bool)
    emitted = np.zeros_like(first)
    acceptance = 0.0
    for _ in range(rounds):
        accepted = reached @ np.minimum(target, drafter)
        emitted += accepted
        acceptance += accepted.sum()
        rejected = np.maximum(drafter - target, 0)  # [orders, V] chance of drawing and rejecting each token
        left = np.maximum(target - drafter, 0)
        order, token = np.nonzero((rejected > 0) & (left.sum(axis=1, keepdims=True) > 0))
        reached = reached[order] * rejected[order, token]
        target = left[order] / left[order].sum(axis=1, keepdims=True)
        untried = untried[order]
        untried[np.arange(len(token)), token] = False
        kept = np.where(untried, drafter[order], 0.0)
        kept = np.where(kept.sum(axis=-1, keepdims=True) > 0, kept, untried)
        drafter = kept / np.maximum(kept.sum(axis=-1, keepdims=True), np.finfo(float).tiny)  # 0 where none is left
    return MultiDraft(float(acceptance), emitted + reached @ target)


def k_seq(p: ArrayLike, q: ArrayLike, drafts: int) -> MultiDraft:
    """Test independent drafts from q in turn, each accepted with min(1, p / (rho q)) (K-SEQ of SpecTr 2310.15141)."""
    target, drafter, rounds = _laws(p, q, drafts)
    rho = k_seq_rho(target, drafter, rounds)
    b = _k_seq_b(target, drafter, rho)
    acceptance = _some_of(b, rounds)
    accepted = np.minimum(target / rho, drafter) * (acceptance / b if b > 0 else 0.0)
    left = np.maximum(target - accepted, 0)
    emitted = accepted + (1 - acceptance) * left / left.sum() if acceptance < 1 and left.sum() > 0 else accepted
    return MultiDraft(acceptance, emitted)


def k_seq_rho(p: ArrayLike, q: ArrayLike, drafts: int) -> float:
    """Return the rho in [1, K] with 1 - (1 - b)^K = rho b, b = sum min(p / rho, q): the least for which K-SEQ emits p.

    The left side falls with rho and the right side rises, so they cross once. Where p and q share no token every rho
    solves the equation, and K is returned.
    """
    target, drafter, rounds = _laws(p, q, drafts)

    def surplus(rho: float) -> float:
        b = _k_seq_b(target, drafter, rho)
        return _some_of(b, rounds) - rho * b

    if surplus(1.0) <= 0:  # one draft, or p = q
        return 1.0 if _k_seq_b(target, drafter, 1.0) > 0 else float(rounds)
    if surplus(rounds) >= 0:  # b is so small that both sides agree to the last digit
        return float(rounds)
    return float(brentq(surplus, 1.0, rounds, xtol=1e-14, rtol=1e-14))


def _laws(p: ArrayLike, q: ArrayLike, drafts: int) -> tuple[FloatArray, FloatArray, int]:
    target, drafter = law(p, "p"), law(q, "q")
    if target.ndim != 1 or target.shape != drafter.shape:
        raise ValueError(f"p and q must be rows of the same length, got shapes {target.shape} and {drafter.shape}")
    return target, drafter, int(count(drafts, "drafts", minimum=1))


def _some_of(chance: float, drafts: int) -> float:
    """Return 1 - (1 - chance)^K without losing the digits of a small chance."""
    return 1.0 if chance >= 1 else float(-np.expm1(drafts * np.log1p(-chance)))


def _k_seq_b(target: FloatArray, drafter: FloatArray, rho: float) -> float:
    return float(np.minimum(target / rho, drafter).sum())
