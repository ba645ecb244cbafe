"""Several drafts for one position (THEORY 1): the chance that one of them is accepted, and the law that is emitted.

`p` and `q` [V] are the laws of target and drafter at the position, `drafts` is K. Each rule emits exactly p. ValueError
for laws that do not sum to 1, differ in length, or K below 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from math import comb, perm

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq, linprog
from scipy.sparse import csr_array

from specdec.theory.arguments import FloatArray, count, law

MAX_VALUES = 5_000_000  # laws after every order of rejected tokens: enumeration holds a few arrays of this size
MAX_COUPLINGS = 50_000  # variables of the linear program: seconds


@dataclass(frozen=True)
class MultiDraft:
    """What a rule does at one position.

    Attributes:
        acceptance: chance that some draft is accepted.
        emitted: [V] law of the token that the position gets, accepted or not.
    """

    acceptance: float
    emitted: FloatArray


def multi_round(p: ArrayLike, q: ArrayLike, drafts: int) -> MultiDraft:
    """Drafts drawn independently from q, tested in turn (SpecInfer 2305.09781).

    A draft is accepted with min(1, p / q); after a rejection p becomes norm((p - q)_+). The rounds are independent,
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
    """Distinct drafts drawn one after another from q, tested in turn (Sequoia 2402.12374; RSD 2402.14160).

    As `multi_round`, and a rejected token also leaves q, which is renormalised; once q is empty it is uniform over the
    untried tokens. What is left of p depends on the tokens tried before, so orders of rejected tokens are enumerated.
    ValueError for more drafts than tokens, or where laws of all orders hold more than MAX_VALUES numbers.
    """
    first, second, rounds = _laws(p, q, drafts)
    vocabulary = len(first)
    _check_distinct(rounds, vocabulary)
    orders = perm(vocabulary, rounds - 1)
    if orders * vocabulary > MAX_VALUES:
        raise ValueError(f"{orders} orders of rejected tokens are too many (at most {MAX_VALUES // vocabulary})")
    reached, target, drafter = np.ones(1), first[None], second[None]  # one row per order of rejected tokens so far
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
        drafter = _renewed(drafter[order], untried)
    return MultiDraft(float(acceptance), emitted + reached @ target)


def k_seq(p: ArrayLike, q: ArrayLike, drafts: int) -> MultiDraft:
    """Drafts drawn independently from q, each accepted with min(1, p / (rho q)), in turn (SpecTr 2310.15141, K-SEQ)."""
    target, drafter, rounds = _laws(p, q, drafts)
    accepted, acceptance = _k_seq_accepted(target, drafter, rounds)
    left = np.maximum(target - accepted, 0)
    emitted = accepted + (1 - acceptance) * left / left.sum() if acceptance < 1 and left.sum() > 0 else accepted
    return MultiDraft(acceptance, emitted)


def k_seq_rho(p: ArrayLike, q: ArrayLike, drafts: int) -> float:
    """rho in [1, K] with 1 - (1 - b)^K = rho b, b = sum min(p / rho, q): the least for which K-SEQ emits p (SpecTr).

    The left side falls with rho and the right side rises, so the crossing is bracketed. Where p and q share no token
    every rho will do, and K is returned.
    """
    target, drafter, rounds = _laws(p, q, drafts)

    def surplus(rho: float) -> float:
        b = _k_seq_b(target, drafter, rho)
        return _some_of(b, rounds) - rho * b

    if surplus(1.0) <= 0:  # one draft, or p = q
        return 1.0 if _k_seq_b(target, drafter, 1.0) > 0 else float(rounds)
    if surplus(rounds) >= 0:  # b so small that K drafts never coincide, to the last digit
        return float(rounds)
    return float(brentq(surplus, 1.0, rounds, xtol=1e-14, rtol=1e-14))


def k_seq_residual(p: ArrayLike, q: ArrayLike, drafts: int) -> FloatArray:
    """Law [V] of the token after K rejections: norm(p - min(q, p / rho) [1 - (1 - b)^K] / b).

    ValueError where one draft is always accepted (p equals q).
    """
    target, drafter, rounds = _laws(p, q, drafts)
    left = np.maximum(target - _k_seq_accepted(target, drafter, rounds)[0], 0)
    if left.sum() <= 0:
        raise ValueError("p equals q: some draft is always accepted, so there is no residual")
    return left / left.sum()


def optimum_iid(p: ArrayLike, q: ArrayLike, drafts: int) -> float:
    """Most that any lossless rule accepts of K independent drafts: 1 + min_H [p(H) - q(H)^K] over token sets H.

    Max-flow = min-cut: the drafts all lie in H with q(H)^K. P - Q^K is concave, so its minimum over the points (p(H),
    q(H)) is at a corner of their convex hull: a set of the tokens with the smallest p / q. No need to try all 2^V sets.
    """
    target, drafter, rounds = _laws(p, q, drafts)
    ratio = np.divide(target, drafter, out=np.full_like(target, np.inf), where=drafter > 0)
    order = np.argsort(ratio)
    cuts = np.cumsum(target[order]) - np.cumsum(drafter[order]) ** rounds
    return float(min(1.0, 1 + cuts.min()))


def optimum_without_replacement(p: ArrayLike, q: ArrayLike, drafts: int) -> float:
    """Most that any lossless rule accepts of K distinct drafts drawn one after another from q, by a linear program.

    Maximise the mass of a coupling of the set S of drafts with a token x of S, whose margins are at most P(S) and
    p(x). Draws go on uniformly over the untried tokens where q is empty. ValueError for more drafts than tokens, or
    more than MAX_COUPLINGS pairs of set and token.
    """
    target, drafter, rounds = _laws(p, q, drafts)
    vocabulary = len(target)
    _check_distinct(rounds, vocabulary)
    pairs = comb(vocabulary, rounds) * rounds
    if pairs > MAX_COUPLINGS:
        raise ValueError(f"{pairs} pairs of draft set and token are too many for a program (at most {MAX_COUPLINGS})")
    chances = _draw_sets(drafter, rounds)
    token = np.array([x for chosen in chances for x in chosen])
    limits = np.concatenate([np.fromiter(chances.values(), float), target])
    margin = np.concatenate([np.arange(pairs) // rounds, len(chances) + token])  # a pair's set, and a pair's token
    entries = (np.ones(2 * pairs), (margin, np.tile(np.arange(pairs), 2)))
    found = linprog(-np.ones(pairs), A_ub=csr_array(entries, shape=(len(limits), pairs)), b_ub=limits, method="highs")
    if not found.success:
        raise ValueError(f"the linear program was not solved: {found.message}")
    return float(min(1.0, -found.fun))


def _laws(p: ArrayLike, q: ArrayLike, drafts: int) -> tuple[FloatArray, FloatArray, int]:
    target, drafter = law(p, "p"), law(q, "q")
    if target.ndim != 1 or target.shape != drafter.shape:
        raise ValueError(f"p and q must be rows of the same length, got shapes {target.shape} and {drafter.shape}")
    return target, drafter, int(count(drafts, "drafts", minimum=1))


def _check_distinct(drafts: int, vocabulary: int) -> None:
    if drafts > vocabulary:
        raise ValueError(f"drafts must be at most the {vocabulary} tokens there are to draw, got {drafts}")


def _renewed(drafter: FloatArray, untried: np.ndarray) -> FloatArray:
    """q over the untried tokens [..., V], uniform where none of its own is left; 0 where no token is."""
    kept = np.where(untried, drafter, 0.0)
    kept = np.where(kept.sum(axis=-1, keepdims=True) > 0, kept, untried)
    return kept / np.maximum(kept.sum(axis=-1, keepdims=True), np.finfo(float).tiny)


def _some_of(chance: float, drafts: int) -> float:
    """1 - (1 - chance)^K without losing the digits of a small chance."""
    return 1.0 if chance >= 1 else float(-np.expm1(drafts * np.log1p(-chance)))


def _k_seq_b(target: FloatArray, drafter: FloatArray, rho: float) -> float:
    return float(np.minimum(target / rho, drafter).sum())


def _k_seq_accepted(target: FloatArray, drafter: FloatArray, drafts: int) -> tuple[FloatArray, float]:
    """Mass [V] that acceptances emit, and its sum."""
    rho = k_seq_rho(target, drafter, drafts)
    b = _k_seq_b(target, drafter, rho)
    acceptance = _some_of(b, drafts)
    return np.minimum(target / rho, drafter) * (acceptance / b if b > 0 else 0.0), acceptance


def _draw_sets(drafter: FloatArray, drafts: int) -> dict[tuple[int, ...], float]:
    """P(S) of every set of `drafts` tokens drawn without replacement, in any order."""

    def grown(sets: dict[tuple[int, ...], float], size: int) -> Iterator[tuple[tuple[int, ...], float]]:
        laws = {chosen: _renewed(drafter, ~np.isin(np.arange(len(drafter)), chosen)) for chosen in sets}
        for chosen in combinations(range(len(drafter)), size):
            before = [(chosen[:i] + chosen[i + 1 :], x) for i, x in enumerate(chosen)]  # x was drawn last
            yield chosen, sum(sets[others] * float(laws[others][x]) for others, x in before)

    sets: dict[tuple[int, ...], float] = {(): 1.0}
    for size in range(1, drafts + 1):
        sets = dict(grown(sets, size))
    return sets
