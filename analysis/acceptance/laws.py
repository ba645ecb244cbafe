"""Laws of a round: what each model of acceptance, fitted to weighted counts, says about rounds of any gamma.

A law gives the chance of every outcome of a round; from it follow the expected rounds of texts of any length, ends of
texts included (theory.md 2.3 and 5.6). Everything is computed for B replicates of the fit at once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import nan

import numpy as np

from .models import fit_beta

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


def _constant(alpha: np.ndarray, sums: Sums) -> Law:
    depth = sums["at_risk"].shape[1]
    return Law(np.broadcast_to(alpha[:, None, None, None], (len(alpha), 1, 1, depth)), np.ones((len(alpha), 1)))


def _capped_mle(sums: Sums) -> Law:
    tested = sums["at_risk"].sum(axis=1)
    return _constant(_share(tested - sums["rejected"].sum(axis=1), tested), sums)


def _position(sums: Sums) -> Law:
    """Take acceptance by depth as estimated; a depth that no round reached counts as never accepted."""
    h = _share(sums["at_risk"] - sums["rejected"], sums["at_risk"], empty=0.0)
    return Law(h[:, None, None, :], np.ones((len(h), 1)))


def _refitted(*terms: np.ndarray, at: np.ndarray | None = None) -> np.ndarray:
    """Return [B, 2] m and rho of every row of the three terms [B, J]; the first row, the data, starts the others.

    at: see `fit_beta`.
    """
    accepted, rejected, tested = (term[0] for term in terms)
    m, rho, _ = fit_beta(accepted, rejected, tested, None, at)
    start = (min(max(m, 1e-6), 1 - 1e-6), max(rho, 1e-3))
    rest = [fit_beta(k, r, n, start, at)[:2] for k, r, n in zip(*(term[1:] for term in terms), strict=True)]
    return np.array([(m, rho), *rest])


def _beta_geometric(sums: Sums) -> Law:
    rejected = sums["rejected"].sum(axis=1, keepdims=True)
    fits = _refitted(sums["at_risk"] - sums["rejected"], rejected, sums["at_risk"])
    m, rho = fits[:, :1], fits[:, 1:]
    j = np.arange(sums["at_risk"].shape[1])
    h = (m * (1 - rho) + j * rho) / (1 - rho + j * rho)
    return Law(h[:, None, None, :], np.ones((len(h), 1)))


def _prompt_beta(sums: Sums) -> Law:
    """Types of prompts are the nodes of Gauss-Jacobi quadrature over the beta law."""
    accepted, rejected, tested = np.moveaxis(sums["units"].reshape(len(sums["units"]), 3, -1), 1, 0)
    fits = _refitted(accepted, rejected, tested, at=grouped_counts(tested.shape[1])[1])
    fits = np.nan_to_num(fits, nan=0.0)  # where nothing was tested, nothing counts as accepted
    m, rho = (np.clip(fits[:, column], 1e-9, 1 - 1e-9) for column in (0, 1))
    size = (1 - rho) / rho
    nodes, weight = beta_quadrature(m * size, (1 - m) * size, NODES)
    depth = sums["at_risk"].shape[1]
    return Law(np.broadcast_to(nodes[:, :, None, None], (*nodes.shape, 1, depth)), weight)


def grouped_counts(groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first counts [groups + 1] and the mean counts [groups] of groups of counts 0, 1, ...

    Small counts stand alone. Few prompts may hold most tokens, and then no group may be as fine as a token; within 5%
    of a count the likelihood of the beta law is straight.
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
    """Take agreement of drafter and target along the text as a two-state Markov chain (theory.md 4.6).

    a01 is the chance to agree after a disagreement, estimated at depth 1 after a rejection; a11 is the chance after an
    agreement, estimated at greater depths. A round without a rejection ends in a token that nobody drafted, so the
    draft after it agrees with chance a11^2 + (1 - a11) a01.
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
    "capped_geometric.text": lambda sums: _constant(np.clip(_share(*sums["text"].T), 0, 1), sums),
    "capped_geometric.mle": _capped_mle,
    "capped_geometric.short": lambda sums: _constant(_share(*sums["short"].T), sums),
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
    return np.concatenate([np.ones((len(share), 1)), np.cumprod(share, axis=1)], axis=1)


def round_law(acceptance: np.ndarray, offers: np.ndarray, gamma: int) -> tuple[np.ndarray, np.ndarray]:
    """Return P(k accepted, then a rejection) and P(k accepted, all that was offered), [..., gamma + 1] each.

    acceptance: [..., G] by depth, G >= gamma; offers: [..., G + 1] chance to offer at least 0, 1, ... tokens.
    """
    passed = np.concatenate([np.ones((*acceptance.shape[:-1], 1)), np.cumprod(acceptance[..., :gamma], axis=-1)], -1)
    least = offers[..., : gamma + 1]
    longer = np.concatenate([least[..., 1:], np.zeros((*least.shape[:-1], 1))], axis=-1)
    exactly = least - longer
    refused = np.concatenate([1 - acceptance[..., :gamma], np.zeros((*acceptance.shape[:-1], 1))], axis=-1)
    return passed * refused * longer, passed * exactly


def first_rounds(law: Law, offers: np.ndarray, gamma: int, tokens: int) -> np.ndarray:
    """Return [B, min(tokens, EXACT) + 1] expected rounds to write a text of 0, 1, ... tokens; offers [B, G + 1].

    R_z(n) = 1 + sum_k P_z(k, rejected) R_0(n-k-1) + P_z(k, all) R_1(n-k-1), where z = 0 after a rejection; a text
    starts as after a round without one. With one state and full offers this is the recursion of theory.md 2.3.
    `continued` gives the rounds of longer texts.
    """
    rejected, whole = round_law(law.acceptance, offers[:, None, None, :], gamma)  # [B, Q, S, gamma + 1]
    replicates, types, states, _ = rejected.shape
    exact = min(tokens, EXACT)
    value = np.zeros((replicates, types, states, gamma + 1 + exact))  # R_z(n) at column n + gamma; zeros before
    for n in range(1, exact + 1):
        window = value[..., n - 1 : n + gamma][..., ::-1]  # R(n - 1), R(n - 2), ..., R(n - gamma - 1)
        after = rejected * window[:, :, :1] + whole * window[:, :, -1:]
        value[..., n + gamma] = 1 + after.sum(axis=-1)
    value[..., : gamma + 1] = 0.0
    return np.einsum("bqn,bq->bn", value[:, :, -1, gamma:], law.weight)


def continued(rounds: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the expected rounds [B, U] of texts of `lengths` [U] from those of 0, 1, ... tokens [B, n + 1].

    Longer texts go on by the mean slope of the second half, from which they differ by less than a round.
    """
    last = rounds.shape[1] - 1
    half = last // 2
    slope = (rounds[:, last] - rounds[:, half]) / max(last - half, 1)
    return rounds[:, np.minimum(lengths, last)] + slope[:, None] * np.maximum(lengths - last, 0)
