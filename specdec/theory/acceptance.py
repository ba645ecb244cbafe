"""Acceptance rules of a chain draft, as laws over a vocabulary (THEORY 1).

`p` and `q` [..., V] are the target's and the drafter's probabilities after the same standardisation. These
are the formulas behind the verifiers, for theory and tests; decoding uses `specdec.sampling` and
`specdec.verifiers`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specdec.theory.arguments import FloatArray, Values, count, law, positive

MAX_PATHS = 5_000_000  # enumeration holds a few float arrays of this size


def beta(p: ArrayLike, q: ArrayLike) -> Values:
    """Chance [...] that a token drawn from q is accepted, sum_x min(p, q) (Leviathan 2211.17192, 3.2)."""
    return np.minimum(law(p, "p"), law(q, "q")).sum(axis=-1)[()]


def residual(p: ArrayLike, q: ArrayLike) -> FloatArray:
    """Law [..., V] of the token emitted after a rejection: norm((p - q)_+). ValueError where p equals q."""
    return _normalised(np.maximum(law(p, "p") - law(q, "q"), 0))


def _normalised(surplus: FloatArray) -> FloatArray:
    total = surplus.sum(axis=-1, keepdims=True)
    if np.any(total <= 0):
        raise ValueError("p equals q (or lies below it everywhere): nothing is rejected, so there is no residual")
    return surplus / total


def lenient_beta(p: ArrayLike, q: ArrayLike, lenience: float) -> Values:
    """Acceptance [...] with min(1, p / (l q)), l in (0, 1]: sum_x min(p / l, q) (2211.17192, A.5)."""
    return np.minimum(law(p, "p") / _lenience(lenience), law(q, "q")).sum(axis=-1)[()]


def lenient_residual(p: ArrayLike, q: ArrayLike, lenience: float, scaled: bool = False) -> FloatArray:
    """Law [..., V] after a lenient rejection: norm((p - q)_+), or norm((p - l q)_+) if `scaled`.

    With either, no token is emitted with more than p / l. Not lossless for l < 1. ValueError if the residual
    is empty.
    """
    factor = _lenience(lenience) if scaled else 1.0
    return _normalised(np.maximum(law(p, "p") - factor * law(q, "q"), 0))


def lenient_greedy_accepts(p: ArrayLike, lenience: float) -> np.ndarray:
    """Tokens [..., V] that a lenient greedy target keeps: p(x) >= l max p (2211.17192 prints it reversed)."""
    laws = law(p, "p")
    return laws >= _lenience(lenience) * laws.max(axis=-1, keepdims=True)


def _lenience(lenience: float) -> float:
    if not 0 < lenience <= 1:
        raise ValueError(f"lenience must lie above 0 and at most at 1, got {lenience!r}")
    return lenience


def entropy(p: ArrayLike) -> Values:
    """Entropy [...] of p in nats, with 0 ln 0 = 0."""
    laws = law(p, "p")
    return -(laws * np.log(np.where(laws > 0, laws, 1.0))).sum(axis=-1)[()]


def typical_threshold(p: ArrayLike, epsilon: float, delta: float) -> Values:
    """min(epsilon, delta exp(-H(p))) [...]: Medusa's typical acceptance keeps p(x) above it (2401.10774,
    2.3.1).
    """
    bound = positive(epsilon, "epsilon")
    return np.minimum(bound, positive(delta, "delta") * np.exp(-entropy(p)))[()]


@dataclass(frozen=True)
class BlockWeights:
    """What block verification computes for one drafted path of gamma tokens (Sun et al. 2403.10444)."""

    weights: FloatArray  # p_0 ... p_gamma, [gamma + 1]
    surplus: FloatArray  # n_0 ... n_{gamma-1}, [gamma]
    h: FloatArray  # h_1 ... h_gamma, [gamma]

    def accepted_pmf(self) -> FloatArray:
        """P(tau = 0 ... gamma) [gamma + 1]: tau is the largest i whose own uniform falls at or below h_i."""
        none_later = np.append(np.cumprod(1 - self.h[::-1])[::-1], 1.0)
        return np.insert(self.h, 0, 1.0) * none_later


def block_weights(p: ArrayLike, q: ArrayLike, tokens: ArrayLike) -> BlockWeights:
    """Weights of one path: p, q [gamma, V] are the conditionals at each drafted position, tokens [gamma] the
    draft.

    p_i = min(1, p_{i-1} p(x_i) / q(x_i)); n_i = sum_x (p_i p_{i+1}(x) - q_{i+1}(x))_+; h_i = n_i / (n_i + 1 -
    p_i) below gamma (0/0 is 1) and h_gamma = p_gamma. ValueError for a token that q cannot draw.
    """
    targets, drafters, path = law(p, "p"), law(q, "q"), np.asarray(tokens, dtype=np.int64)
    gamma = len(path)
    if targets.shape != drafters.shape or targets.shape[0] != gamma:
        raise ValueError(f"p, q and tokens differ in length: {targets.shape}, {drafters.shape}, {gamma} tokens")
    drawn = drafters[np.arange(gamma), path]
    if np.any(drawn <= 0):
        raise ValueError("a drafted token has probability 0 under q, so it cannot have been drawn from it")
    ratios = targets[np.arange(gamma), path] / drawn
    weights = np.ones(gamma + 1)
    for i in range(gamma):
        weights[i + 1] = min(1.0, weights[i] * ratios[i])
    surplus = np.maximum(weights[:-1, None] * targets - drafters, 0).sum(axis=-1)
    inner, slack = surplus[1:], 1 - weights[1:-1]
    total = inner + slack
    h = np.append(np.divide(inner, total, out=np.ones_like(total), where=total > 0), weights[-1])
    return BlockWeights(weights, surplus, h)


@dataclass(frozen=True)
class ExpectedAccepted:
    """Expected accepted tokens of one chain: token by token, by block, and the most any scheme can reach."""

    token: float
    block: float
    bound: float


def expected_accepted(
    p_start: ArrayLike, q_start: ArrayLike, p_next: ArrayLike, q_next: ArrayLike, gamma: int
) -> ExpectedAccepted:
    """Expected accepted tokens for a pair of Markov laws, by enumerating every path of up to gamma tokens.

    p_start, q_start [V] are the laws of the first token; row x of p_next, q_next [V, V] is the law after
    token x (an i.i.d. pair has equal rows). Token verification: sum_i sum prod min(p, q); block: sum_i
    E_q[p_i]; bound: sum_i sum min(prod p, prod q) (2403.10444). ValueError beyond MAX_PATHS paths.
    """
    p_row, q_row = law(p_start, "p_start")[None], law(q_start, "q_start")[None]  # [1, V]
    p_rows, q_rows = law(p_next, "p_next"), law(q_next, "q_next")
    vocabulary, length = p_row.shape[1], int(count(gamma, "gamma"))
    if vocabulary**length > MAX_PATHS:
        raise ValueError(f"{vocabulary}^{length} paths are too many to enumerate (at most {MAX_PATHS})")
    p_path = q_path = token_path = weight = np.ones(1)  # one entry per path so far
    token = block = bound = 0.0
    for i in range(length):
        ratio = np.divide(p_row, q_row, out=np.zeros_like(p_row), where=q_row > 0)  # q_path is 0 there
        weight = np.minimum(1, weight[:, None] * ratio).ravel()
        token_path = (token_path[:, None] * np.minimum(p_row, q_row)).ravel()
        p_path = (p_path[:, None] * p_row).ravel()
        q_path = (q_path[:, None] * q_row).ravel()
        token += float(token_path.sum())
        block += float((q_path * weight).sum())
        bound += float(np.minimum(p_path, q_path).sum())
        p_row, q_row = np.tile(p_rows, (vocabulary**i, 1)), np.tile(q_rows, (vocabulary**i, 1))
    return ExpectedAccepted(token, block, bound)
