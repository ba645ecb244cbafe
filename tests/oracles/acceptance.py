"""Acceptance rules of a chain draft, as laws over a vocabulary (theory.md 1.1 to 1.3).

The verifiers are tested against these formulas; decoding uses `specdec.sampling` and
`specdec.verifiers`. `p` and `q` [..., V] are the probabilities of target and drafter after the same standardisation.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from specdec.theory.arguments import FloatArray, Values, count, law, positive, probability


def beta(p: ArrayLike, q: ArrayLike, lenience: ArrayLike = 1.0) -> Values:
    """Return the chance [...] that a token drawn from q is accepted: sum_x min(p / l, q) (Leviathan 2211.17192, 3.2;
    A.5 for a lenience l below 1).

    `lenience` [...] in (0, 1]; 1 is speculative sampling.
    """
    share = positive(probability(lenience, "lenience"), "lenience")
    return np.minimum(law(p, "p") / share[..., None], law(q, "q")).sum(axis=-1)[()]


def residual(p: ArrayLike, q: ArrayLike) -> FloatArray:
    """Return the law [..., V] of the token after a rejection: norm((p - q)_+)."""
    surplus = np.maximum(law(p, "p") - law(q, "q"), 0)
    return surplus / surplus.sum(axis=-1, keepdims=True)


def entropy(p: ArrayLike) -> Values:
    """Entropy [...] of p in nats, with 0 ln 0 = 0."""
    laws = law(p, "p")
    return -(laws * np.log(np.where(laws > 0, laws, 1.0))).sum(axis=-1)[()]


def typical_threshold(p: ArrayLike, epsilon: float, delta: float) -> Values:
    """Return min(epsilon, delta exp(-H(p))) [...]: typical acceptance keeps p(x) above it (2401.10774, 2.3.1)."""
    bound = positive(epsilon, "epsilon")
    return np.minimum(bound, positive(delta, "delta") * np.exp(-entropy(p)))[()]


@dataclass(frozen=True)
class BlockWeights:
    """The numbers of block verification for one drafted path of gamma tokens (Sun et al. 2403.10444)."""

    weights: FloatArray  # p_0 ... p_gamma, [gamma + 1]
    surplus: FloatArray  # n_0 ... n_{gamma-1}, [gamma]
    h: FloatArray  # h_1 ... h_gamma, [gamma]

    def accepted_pmf(self) -> FloatArray:
        """Return P(tau = 0 ... gamma) [gamma + 1]; tau is the largest i whose uniform number is at most h_i."""
        none_later = np.append(np.cumprod(1 - self.h[::-1])[::-1], 1.0)
        return np.insert(self.h, 0, 1.0) * none_later


def block_weights(p: ArrayLike, q: ArrayLike, tokens: ArrayLike) -> BlockWeights:
    """Compute the weights of one path; p, q [gamma, V] are the laws at each drafted position, tokens [gamma] the draft.

    p_i = min(1, p_{i-1} p(x_i) / q(x_i)); n_i = sum_x (p_i p_{i+1}(x) - q_{i+1}(x))_+; h_i = n_i / (n_i + 1 - p_i)
    below gamma (0/0 is 1) and h_gamma = p_gamma.
    """
    targets, drafters, path = law(p, "p"), law(q, "q"), np.asarray(tokens, dtype=np.int64)
    gamma = len(path)
    ratios = targets[np.arange(gamma), path] / drafters[np.arange(gamma), path]
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
    """Expected accepted tokens of one chain: token by token, by block, and the most that any scheme can reach."""

    token: float
    block: float
    bound: float


def expected_accepted(
    p_start: ArrayLike, q_start: ArrayLike, p_next: ArrayLike, q_next: ArrayLike, gamma: int
) -> ExpectedAccepted:
    """Compute the expected accepted tokens for a pair of Markov laws, over every path of up to gamma tokens.

    p_start, q_start [V] are the laws of the first token; p_next[x], q_next[x] [V] are the laws after token x (for an
    i.i.d. pair they are all equal). Token verification: sum_i sum prod min(p, q); block: sum_i E_q[p_i]; bound: sum_i
    sum min(prod p, prod q) (2403.10444).
    """
    p_row, q_row = law(p_start, "p_start")[None], law(q_start, "q_start")[None]  # [1, V]
    p_rows, q_rows = law(p_next, "p_next"), law(q_next, "q_next")
    vocabulary, length = p_row.shape[1], int(count(gamma, "gamma"))
    p_path = q_path = token_path = weight = np.ones(1)  # one entry for each path so far
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
