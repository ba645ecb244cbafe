"""Laws of a round: what each model of acceptance, fitted to weighted counts, says about rounds of any gamma.

A law gives the chance of every outcome of a round; from it follow the expected rounds of texts of any length, ends of
texts included (theory.md 2.3 and 5.6). Everything is computed for B replicates of the fit at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import nan

import numpy as np

from .estimates import refitted

NODES = 12  # of the quadrature over a prompt's alpha: exact for polynomials of degree 23
EXACT = 512  # tokens of a text that are written one by one; expected rounds grow linearly beyond
BINS = 64  # first counts of the prompt beta that stand alone; larger ones are grouped, each group 5% of its size


@dataclass(frozen=True)
class Law:
    """The chances of acceptance by a model, for B replicates of its fit."""

    # [B, Q, S, G] chance that the draft at depth k is accepted if reached, for each of Q types of prompts, in a round
    # after one that saw a rejection (first of S) or not (last); S may be 1
    acceptance: np.ndarray
    weight: np.ndarray  # [B, Q] share of prompts of each type


Sums = Mapping[str, np.ndarray]  # weighted sums [B, ...] of the counts of `prediction`, by name


def _share(part: np.ndarray, whole: np.ndarray, empty: float = nan) -> np.ndarray:
    """Return part over whole; `empty` where nothing was counted."""
    return np.divide(part, whole, out=np.full(whole.shape, empty), where=whole > 0)


def _capped_geometric(alpha: str, sums: Sums) -> Law:
    """Take one chance at all depths. alpha: the name of its sums, accepted and tested [B, 2]."""
    chance = np.clip(_share(*sums[alpha].T), 0, 1)[:, None]  # rounding may pass 1
    acceptance = np.broadcast_to(chance[..., None, None], (*chance.shape, 1, sums["at_risk"].shape[1]))
    return Law(acceptance, np.ones_like(chance))


def _position(sums: Sums) -> Law:
    """Take acceptance by depth as estimated; a depth that no round reached counts as never accepted."""
    h = _share(sums["at_risk"] - sums["rejected"], sums["at_risk"], empty=0.0)
    return Law(h[:, None, None, :], np.ones((len(h), 1)))


def _beta_geometric(sums: Sums) -> Law:
    at_risk, rejected = sums["at_risk"], np.zeros(sums["at_risk"].shape)
    rejected[:, 0] = sums["rejected"].sum(axis=1)  # a round sees one rejection at most
    fits = refitted(np.stack([at_risk - sums["rejected"], rejected, at_risk], axis=1))
    m, rho = fits[:, :1], fits[:, 1:]
    j = np.arange(at_risk.shape[1])
    h = (m * (1 - rho) + j * rho) / (1 - rho + j * rho)
    return Law(h[:, None, None, :], np.ones((len(h), 1)))


def _prompt_beta(sums: Sums) -> Law:
    """Types of prompts are the nodes of Gauss-Jacobi quadrature over the beta law."""
    counts = sums["units"].reshape(len(sums["units"]), 3, -1)
    fits = refitted(counts, grouped_counts(counts.shape[2])[1])
    fits = np.nan_to_num(fits, nan=0.0)  # where nothing was tested, nothing counts as accepted
    m, rho = (np.clip(fits[:, column], 1e-9, 1 - 1e-9) for column in (0, 1))
    size = (1 - rho) / rho
    nodes, weight = beta_quadrature(m * size, (1 - m) * size, NODES)
    depth = sums["at_risk"].shape[1]
    return Law(np.broadcast_to(nodes[:, :, None, None], (*nodes.shape, 1, depth)), weight)


def grouped_counts(groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first counts [groups + 1] and the mean counts [groups] of groups of counts 0, 1, ...: few prompts may
    hold most tokens, so only small counts stand alone. Within 5% of a count the likelihood of the beta law is straight.
    """
    edges = np.arange(groups + 1)
    for index in range(BINS + 1, groups + 1):
        edges[index] = edges[index - 1] + 1 + edges[index - 1] // 20
    return edges, (edges[:-1] + edges[1:] - 1) / 2


def beta_quadrature(a: np.ndarray, b: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss-Jacobi nodes and weights [B, nodes] of the laws Beta(a, b), a and b [B] > 0; weights sum to 1.
    They come from the eigenvectors of the recurrence matrix (Golub and Welsch 1969), which stays finite for large a, b.
    """
    p, q = (b - 1)[:, None], (a - 1)[:, None]  # the exponents on [-1, 1]
    n = np.arange(1, nodes)
    twice = 2 * n + p + q
    centre = np.concatenate([(q - p) / (p + q + 2), (q**2 - p**2) / (twice * (twice + 2))], axis=1)
    # (n + p + q) / (2n + p + q - 1) is 1 at n = 1, also where both are 0.
    shrink = np.where(n == 1, 1.0, (n + p + q) / np.where(n == 1, 1.0, twice - 1))
    square = 4 * n * (n + p) * (n + q) * shrink / (twice**2 * (twice + 1))
    matrix = np.zeros((len(a), nodes, nodes))
    matrix[:, np.arange(nodes), np.arange(nodes)] = centre
    matrix[:, n, n - 1] = np.sqrt(square)  # eigh reads the lower triangle
    values, vectors = np.linalg.eigh(matrix)
    return np.clip((1 + values) / 2, 0, 1), vectors[:, 0, :] ** 2


def _markov(sums: Sums) -> Law:
    """Take agreement of drafter and target along the text as a two-state Markov chain (theory.md 4.6): a01, the chance
    to agree after a disagreement, is estimated at depth 1 after a rejection, a11, after an agreement, at greater
    depths. A round without a rejection ends in a token that nobody drafted: the draft after it agrees with a11^2 + (1 -
    a11) a01.
    """
    rise = _share(*sums["first"].T)
    tested = sums["at_risk"][:, 1:].sum(axis=1)
    stay = _share(tested - sums["rejected"][:, 1:].sum(axis=1), tested)
    return markov_law(rise, stay, sums["at_risk"].shape[1])


def markov_law(a01: np.ndarray, a11: np.ndarray, depth: int) -> Law:
    """Return the law of rounds over a text whose agreement is a two-state chain; a01, a11 [B] as in `_markov`."""
    acceptance = np.broadcast_to(a11[:, None, None, None], (len(a11), 1, 2, depth)).copy()
    acceptance[:, 0, 0, 0] = a01
    acceptance[:, 0, 1, 0] = a11**2 + (1 - a11) * a01
    return Law(acceptance, np.ones((len(a11), 1)))


LAWS: dict[str, Callable[[Sums], Law]] = {
    **{f"capped_geometric.{alpha}": partial(_capped_geometric, alpha) for alpha in ("text", "mle", "short")},
    "position": _position,
    "beta_geometric": _beta_geometric,
    "prompt_beta": _prompt_beta,
    "markov": _markov,
}


def offer_chances(sums: Sums) -> np.ndarray:
    """Return [B, G + 1] chances that a round with room for them offers at least 0, 1, ... G tokens (Kaplan-Meier).
    Where no text had room for a number of tokens, the drafter is taken to offer them.
    """
    share = _share(sums["offered"], sums["could_offer"], empty=1.0)
    return np.cumprod(np.insert(share, 0, 1.0, axis=1), axis=1)


def round_law(acceptance: np.ndarray, offers: np.ndarray, gamma: int) -> tuple[np.ndarray, np.ndarray]:
    """Return P(k accepted, then a rejection) and P(k accepted, all that was offered), [..., gamma + 1] each.
    acceptance: [..., G] by depth, G >= gamma; offers: [..., G + 1] chance to offer at least 0, 1, ... tokens.
    """
    passed = np.cumprod(np.insert(acceptance[..., :gamma], 0, 1.0, axis=-1), axis=-1)
    refused = np.insert(1 - acceptance[..., :gamma], gamma, 0.0, axis=-1)
    longer = np.insert(offers[..., 1 : gamma + 1], gamma, 0.0, axis=-1)
    return passed * refused * longer, passed * (offers[..., : gamma + 1] - longer)


def rounds_by_law(law: Law, offers: np.ndarray, gamma: int, lengths: np.ndarray) -> np.ndarray:
    """Return [B, U] expected rounds to write texts of `lengths` [U] tokens; offers [B, G + 1] (theory.md 5.6). The
    state is 0 after a rejection; a text starts as after a round without one.
    """
    rejected, whole = round_law(law.acceptance, offers[:, None, None, :], gamma)  # [B, Q, S, gamma + 1]
    states = rejected.shape[2]
    moves = np.zeros((*rejected.shape, states))
    moves[..., 0] = rejected
    moves[..., -1] += whole
    moves = moves.reshape(-1, *moves.shape[2:]).swapaxes(1, 2)
    start = np.broadcast_to(np.eye(states)[-1], (len(moves), states))
    by_type = rounds_of_texts(moves, start, lengths).reshape(*law.weight.shape, -1)
    return np.einsum("bqu,bq->bu", by_type, law.weight)


def rounds_of_texts(moves: np.ndarray, start: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return [B, U] expected rounds to write texts of `lengths` [U] tokens: R_z(n) = 1 + sum_k sum_y moves_k[z, y]
    R_y(n - k - 1), and R_z(n) = 0 for n <= 0. Beyond `EXACT` tokens texts go on by the mean slope of the second half,
    from which they differ by less than a round.

    moves: [B, gamma + 1, S, S] chance that a round which begins in one state accepts k tokens and that the next begins
    in another; start: [B, S] law of the state at the first token.
    """
    batch, outcomes, states, _ = moves.shape
    last = min(int(lengths.max()), EXACT)
    flat = np.ascontiguousarray(moves.transpose(0, 2, 1, 3)).reshape(batch, states, -1)
    value = np.zeros((batch, last + outcomes, states))  # R(n) at row last - n, so that a window is R(n - 1), ...
    for row in range(last - 1, -1, -1):
        window = value[:, row + 1 : row + outcomes + 1].reshape(batch, 1, -1)
        value[:, row] = 1 + (flat * window).sum(axis=2)
    rounds = np.einsum("bnk,bk->bn", value[:, last::-1], start)  # of texts of 0, 1, ... tokens
    half = last // 2
    slope = (rounds[:, last] - rounds[:, half]) / max(last - half, 1)
    return rounds[:, np.minimum(lengths, last)] + slope[:, None] * np.maximum(lengths - last, 0)
