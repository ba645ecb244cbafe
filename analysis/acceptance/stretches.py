"""Stretches of the text: a hidden Markov model of acceptance, which predicts rounds of any gamma from those of one.

A text runs through K hidden kinds of stretches (hard, easy, copied). After every token the kind z changes by T [K, K];
at the first token of a text it has the law `start`. In a stretch of kind z, the draft at depth k of a round is accepted
with chance p_z(k), logit p_z(k) = a_z + slope (k - 1), and a round offers at least d tokens with chance
S_z(d) = (1 - w_z) c_z^(d-1): it is silent with chance w_z and goes on with chance c_z. With P_k = diag(p_z(k)),
a round that accepts s tokens and sees a rejection at depth s + 1, or accepts all of s offered, moves the hidden kind by

    A_s = P_1 T P_2 T ... P_s T (I - P_{s+1}) T,        F_s = P_1 T P_2 T ... P_s T T:

every token of the round takes one step, the correction or bonus token, which nobody tests, too. So what a round begins
with depends on how the last one ended, at every gamma: after a rejection the text is probably hard, after a full
acceptance probably easy; that is what one chance per depth, or per previous round, cannot carry over from the largest
gamma to gamma 1. One kind is the capped geometric model; two kinds that accept always and never are the Markov chain
of agreement along the text; a slope below 0 is a feature drafter, whose drafts wear off with depth.

The likelihood of a text is start M_1 M_2 ... 1 over its rounds (Rabiner 1989, forward and backward passes, by rounds
instead of tokens). notebooks/guide/theory.md 5.7 has the model beside the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize
from scipy.special import expit, softmax

from .laws import continued

KINDS = (2, 3, 4)  # numbers of kinds of stretches that are tried
EXACT = 1024  # tokens of a text that are written one by one
PIECE = 256  # rounds: longer texts are cut there, so that texts of any length are passed side by side
FEW, MANY = 5_000, 30_000  # rounds to which the model is fitted from each start, and from the best
NEWTON = 2  # steps on all texts after that
PRIOR = 0.02  # of every parameter, squared, in nats: a normal law of standard deviation 5
STEP = 1e-5  # of numerical derivatives
BOUND = 9.0  # of every parameter: a chance within 1.2e-4 of 0 or 1


@dataclass(frozen=True)
class Family:
    """The parameters that are free: kinds of stretches, depth of the rounds, and whether what is offered varies."""

    kinds: int
    depth: int
    offers: bool

    @property
    def size(self) -> int:
        """Number of parameters: changes, start, acceptance, slope, offers."""
        return self.kinds * (self.kinds - 1) + (self.kinds - 1) + self.kinds + 1 + 2 * self.kinds * self.offers

    def stretches(self, parameters: np.ndarray) -> "Stretches":
        """Return the models of parameters [B, size]."""
        kinds, batch = self.kinds, len(parameters)
        changes, start, a, slope, silent, ends = np.split(
            parameters, np.cumsum([kinds * (kinds - 1), kinds - 1, kinds, 1, kinds * self.offers]), axis=1
        )
        logits = np.zeros((batch, kinds, kinds))
        logits[:, ~np.eye(kinds, dtype=bool)] = changes
        k = np.arange(self.depth)
        accept = expit(a[:, None, :] + slope[:, :, None] * k[None, :, None] / 5)
        least = np.ones((batch, self.depth + 2, kinds))
        if self.offers:
            powers = expit(ends)[:, None, :] ** k[None, :, None]
            least[:, 1:-1] = expit(-silent)[:, None, :] * powers
        least[:, -1] = 0.0
        law = softmax(np.concatenate([np.zeros((batch, 1)), start], axis=1), axis=1)
        return Stretches(softmax(logits, axis=2), law, accept, least)

    def starts(self) -> list[np.ndarray]:
        """Return parameters from which the likelihood is climbed: long stretches and short ones."""
        points = []
        for leave, spread in ((-3.0, 2.0), (-1.5, 1.5)):
            x = np.zeros(self.size)
            changes = self.kinds * (self.kinds - 1)
            x[:changes] = leave - 0.5 * (np.arange(changes) % 2)
            at = changes + self.kinds - 1
            x[at : at + self.kinds] = np.linspace(-1.0, spread, self.kinds)
            if self.offers:
                x[-2 * self.kinds : -self.kinds] = np.linspace(0.0, -2.0, self.kinds)
                x[-self.kinds :] = np.linspace(0.5, 2.5, self.kinds)
            points.append(x)
        return points


@dataclass(frozen=True)
class Stretches:
    """Models of B parameter vectors.

    Attributes:
        change: [B, K, K] law of the next token's kind.
        start: [B, K] law of the kind at the first token of a text.
        accept: [B, G, K] chance that the draft at a depth is accepted if it is tested.
        least: [B, G + 2, K] chance to offer at least 0, 1, ... G tokens; 0 for more.
    """

    change: np.ndarray
    start: np.ndarray
    accept: np.ndarray
    least: np.ndarray

    def steps(self) -> tuple[np.ndarray, np.ndarray]:
        """Return A_s [B, G, K, K] and F_s [B, G + 1, K, K]."""
        batch, depth, kinds = self.accept.shape
        passed = np.broadcast_to(np.eye(kinds), (batch, kinds, kinds))
        rejected, full = [], []
        for k in range(depth):
            full.append(passed @ self.change)
            rejected.append((passed * (1 - self.accept[:, k, None, :])) @ self.change)
            passed = (passed * self.accept[:, k, None, :]) @ self.change
        full.append(passed @ self.change)
        return np.stack(rejected, axis=1), np.stack(full, axis=1)

    def moves(self, gamma: int) -> np.ndarray:
        """Return [B, gamma + 1, K, K]: chance that a round which begins in one kind accepts k tokens and that the
        next begins in another.
        """
        rejected, full = self.steps()
        least = self.least[:, : gamma + 2].copy()
        least[:, gamma + 1] = 0.0
        moves = (least[:, :-1] - least[:, 1:])[..., None] * full[:, : gamma + 1]
        moves[:, :gamma] += least[:, 1:-1, :, None] * rejected[:, :gamma]
        return moves

    def first_rounds(self, gamma: int, tokens: int) -> np.ndarray:
        """Return [B, min(tokens, EXACT) + 1] expected rounds to write a text of 0, 1, ... tokens.

        R_z(n) = 1 + sum_k sum_y moves_k[z, y] R_y(n - k - 1), and R_z(n) = 0 for n <= 0.
        """
        moves = self.moves(gamma)
        batch, _, kinds, _ = moves.shape
        exact = min(tokens, EXACT)
        flat = np.ascontiguousarray(moves.transpose(0, 2, 1, 3)).reshape(batch, kinds, -1)
        value = np.zeros((batch, exact + gamma + 1, kinds))  # R(n) at row exact - n, so that a window is R(n - 1), ...
        for row in range(exact - 1, -1, -1):
            window = value[:, row + 1 : row + gamma + 2].reshape(batch, -1, 1)
            value[:, row] = 1 + (flat @ window)[..., 0]
        return np.einsum("bnk,bk->bn", value[:, exact::-1], self.start)

    def rounds_of(self, gamma: int, lengths: np.ndarray) -> np.ndarray:
        """Return [B, U] expected rounds of texts of `lengths` [U] tokens; long ones go on by the mean slope."""
        return continued(self.first_rounds(gamma, int(lengths.max())), lengths)

    def outcomes(self, codes: np.ndarray) -> np.ndarray:
        """Return the matrices [B, C, K, K] of outcomes [C, 4]: offered, accepted, rejected, cut (see `Outcomes`)."""
        rejected, full = self.steps()
        offered, accepted, refused, cut = codes.T
        least = self.least[:, offered] - np.where(cut[None, :, None] == 1, 0.0, self.least[:, offered + 1])
        body = np.where(
            refused[None, :, None, None] == 1,
            rejected[:, np.minimum(accepted, rejected.shape[1] - 1)],
            full[:, accepted],
        )
        return least[..., None] * body


def stationary(change: np.ndarray) -> np.ndarray:
    """Return the law [B, K] that a chain [B, K, K] keeps."""
    kinds = change.shape[1]
    system = np.swapaxes(change, 1, 2) - np.eye(kinds)
    system[:, -1] = 1.0
    return np.linalg.solve(system, np.broadcast_to(np.eye(kinds)[-1][:, None], (len(change), kinds, 1)))[..., 0]


@dataclass(frozen=True)
class Outcomes:
    """Rounds of one gamma as sequences of outcomes.

    Attributes:
        codes: [C, 4] distinct outcomes: tokens offered, accepted, 1 if a rejection was seen, 1 if the end of the text
            allowed no longer offer.
        rounds: [pieces, R] outcome of each round of a piece of a text, the longest piece first; -1 after its end.
        first: [pieces] True where a piece begins its text.
        owner: [pieces] prompt, of `prompts`.
    """

    codes: np.ndarray
    rounds: np.ndarray
    first: np.ndarray
    owner: np.ndarray
    prompts: int

    def parts(self, most: int) -> "list[Outcomes]":
        """Deal the pieces out to parts of about `most` rounds; one part, the trace itself, where they are no more."""
        step = -(-int((self.rounds >= 0).sum()) // most)
        if step == 1:
            return [self]
        made = []
        for number in range(step):
            some = slice(number, None, step)
            rounds = self.rounds[some]
            rounds = rounds[:, (rounds >= 0).any(axis=0)]
            made.append(replace(self, rounds=rounds, first=self.first[some], owner=self.owner[some]))
        return made


def make_trace(table: Mapping[str, np.ndarray], prompts: int) -> Outcomes:
    """Return the trace of rounds in order.

    table: text, prompt (numbers), offered, accepted, rejected, room [N]; room: the most that could be offered.
    """
    columns = np.stack(
        [table["offered"], table["accepted"], table["rejected"], table["offered"] >= table["room"]], axis=1
    ).astype(np.int64)
    radix = int(columns.max(initial=0)) + 1
    key = ((columns[:, 0] * radix + columns[:, 1]) * 2 + columns[:, 2]) * 2 + columns[:, 3]
    _, first_at, code = np.unique(key, return_index=True, return_inverse=True)
    text = table["text"]
    begins = np.flatnonzero(np.diff(text, prepend=-1))
    place = np.arange(len(text)) - np.repeat(begins, np.diff(np.append(begins, len(text))))
    starts = np.flatnonzero(place % PIECE == 0)
    sizes = np.diff(np.append(starts, len(text)))
    order = np.argsort(-sizes, kind="stable")
    row = np.empty(len(starts), dtype=np.int64)
    row[order] = np.arange(len(starts))
    rounds = np.full((len(starts), int(sizes.max())), -1, dtype=np.int16)
    rounds[np.repeat(row, sizes), place % PIECE] = code
    return Outcomes(columns[first_at], rounds, (place[starts] == 0)[order], table["prompt"][starts][order], prompts)


def _passes(
    trace: Outcomes, matrices: np.ndarray, begin: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """Return the log-likelihood, and by piece the forward laws before each round [R, n, K], the backward values after
    it over the chance of the round [R, n, K], and the backward values at the first round [n, K].

    matrices: [C, K, K] of outcomes; begin: [n, K] laws at the first round of each piece.
    """
    active = (trace.rounds >= 0).sum(axis=0)
    pieces, length = trace.rounds.shape
    kinds = begin.shape[1]
    before = np.zeros((length, pieces, kinds))
    chance = np.ones((length, pieces))
    law, ones = begin.copy(), np.ones(kinds)
    for r in range(length):
        n = active[r]
        before[r, :n] = law[:n]
        law = (law[:n, None, :] @ matrices[trace.rounds[:n, r]])[:, 0]
        chance[r, :n] = law @ ones
        law /= chance[r, :n, None]
    after = np.zeros((length, pieces, kinds))
    value = np.ones((pieces, kinds))
    for r in range(length - 1, -1, -1):
        n = active[r]
        after[r, :n] = value[:n] / chance[r, :n, None]
        value[:n] = (matrices[trace.rounds[:n, r]] @ after[r, :n, :, None])[..., 0]
    return float(np.log(chance).sum()), before, after, value


class Likelihood:
    """The log-likelihood of a trace, its slope, and the slopes of each prompt."""

    def __init__(self, family: Family, trace: Outcomes) -> None:
        self._family, self._trace = family, trace
        self.rounds = int((trace.rounds >= 0).sum())

    @staticmethod
    def _slope(values: np.ndarray) -> np.ndarray:
        half = len(values) // 2
        return (values[1 : half + 1] - values[half + 1 :]) / (2 * STEP)

    def negative(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Return minus the log-likelihood per round, with the prior, and its slope [size]."""
        value, slopes = self.by_prompt(x)
        return (PRIOR * float(x @ x) - value) / self.rounds, (2 * PRIOR * x - slopes.sum(axis=0)) / self.rounds

    def climb(self, x: np.ndarray, iterations: int) -> tuple[float, np.ndarray]:
        """Return `negative` at its minimum near x, to a thousandth of a nat, and the parameters there."""
        options = {"maxiter": iterations, "ftol": 1e-3 / self.rounds, "gtol": 1e-7}
        bounds = [(-BOUND, BOUND)] * len(x)
        minimum = optimize.minimize(self.negative, x, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
        return float(minimum.fun), minimum.x

    def curvature(self, x: np.ndarray) -> np.ndarray:
        """Return the second derivatives of minus the log-likelihood, [size, size], eigenvalues at least the prior's."""
        steps = 1e-3 * np.eye(len(x))
        rows = [(self.negative(x + step)[1] - self.negative(x - step)[1]) / 2e-3 * self.rounds for step in steps]
        values, vectors = np.linalg.eigh((np.array(rows) + np.array(rows).T) / 2)
        return (vectors * np.maximum(values, 2 * PRIOR)) @ vectors.T

    def by_prompt(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the log-likelihood and its slope by prompt [P, size], without the prior."""
        trace = self._trace
        # The matrices of outcomes [.., C, K, K] and the laws [.., 2, K] in the middle and at the first round of a text,
        # at x and a step up and down in each parameter: 1 + 2 size of them.
        steps = STEP * np.eye(len(x))
        models = self._family.stretches(np.concatenate([x[None], x + steps, x - steps]))
        matrices = models.outcomes(trace.codes)
        middle = stationary(models.moves(self._family.depth).sum(axis=1))
        begin = np.stack([middle, models.start], axis=1)
        value, before, after, first = _passes(trace, np.ascontiguousarray(matrices[0]), begin[0][trace.first * 1])
        codes, kinds = len(trace.codes), begin.shape[2]
        change = self._slope(matrices)  # [size, C, K, K]
        slopes = np.zeros((trace.prompts, len(x)))
        seen = trace.rounds.T >= 0
        cell = (trace.owner[None, :] * codes + trace.rounds.T)[seen]
        before, after = before[seen], after[seen]
        for i in range(kinds):
            for j in range(kinds):
                count = np.bincount(cell, before[:, i] * after[:, j], trace.prompts * codes).reshape(-1, codes)
                slopes += count @ change[:, :, i, j].T
        np.add.at(slopes, trace.owner, np.einsum("pnk,nk->np", self._slope(begin)[:, trace.first * 1], first))
        return value, slopes


@dataclass(frozen=True)
class StretchesFit:
    """The fit to one half: parameters [size], slopes by prompt [P, size] and minus the curvature [size, size]."""

    family: Family
    parameters: np.ndarray
    log_likelihood: float
    slopes: np.ndarray
    curvature: np.ndarray

    def replicates(self, weights: np.ndarray) -> Stretches:
        """Return the models of replicates in which prompts count `weights` [B, P] times, by one Newton step each.

        The first row is the data. In directions that the data hardly determine no step is longer than 1, which is a lot
        for a logit.
        """
        step = np.linalg.solve(self.curvature, ((weights - weights[:1]) @ self.slopes).T).T
        return self.family.stretches(np.clip(self.parameters + np.clip(step, -1, 1), -BOUND, BOUND))


def fit_stretches(families: Sequence[Family], trace: Outcomes) -> StretchesFit:
    """Fit by maximum likelihood: on some of the texts from several starts, then by Newton's steps on all of them.

    So the time hardly grows with the texts: the sample gives the place and the curvature, all texts the last digits.
    Of several families the one of the best AIC is taken.
    """
    few, parts = trace.parts(FEW)[0], trace.parts(MANY)
    many = parts[0]
    whole = int((trace.rounds >= 0).sum())

    def climbed(family: Family) -> tuple[float, Family, np.ndarray]:
        start = min((Likelihood(family, few).climb(x, 40) for x in family.starts()), key=lambda climb: climb[0])[1]
        value, x = Likelihood(family, many).climb(start, 150)
        return 2 * family.size + 2 * value * whole, family, x

    _, family, x = min((climbed(family) for family in families), key=lambda climb: climb[0])
    sample = Likelihood(family, many)

    def everything(x: np.ndarray) -> tuple[float, np.ndarray]:
        # A part after the other: the passes over all rounds would take more memory than the rounds.
        parted = [Likelihood(family, part).by_prompt(x) for part in parts]
        return sum(value for value, _ in parted), np.sum([slopes for _, slopes in parted], axis=0)

    curvature = sample.curvature(x) * whole / sample.rounds
    value, slopes = everything(x)
    for _ in range(NEWTON if many is not trace else 0):
        near = np.clip(x + np.linalg.solve(curvature, slopes.sum(axis=0) - 2 * PRIOR * x), -BOUND, BOUND)
        better, there = everything(near)
        if better - PRIOR * near @ near <= value - PRIOR * x @ x:
            break
        x, value, slopes = near, better, there
    return StretchesFit(family, x, value, slopes, curvature)
