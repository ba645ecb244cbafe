"""Stretches of the text: a hidden Markov model of acceptance, which predicts rounds of any gamma from those of one, as
theory.md 5.7 derives it.

A text runs through K hidden kinds of stretches (hard, easy, copied). After every token the kind z changes by T [K, K];
at the first token it has the law `start`. Texts differ in their level u, a normal variable of variance 1 around
drift (log n - centre) for n tokens. The draft at depth k of a round is accepted with chance p_z(k), logit p_z(k) =
a_z + spread u + slope (k - 1), the logits of a change to kind y move by pull u y / (K - 1), and a round offers at least
d tokens with chance S_z(d) = (1 - w_z) c_z^(d-1): it is silent with chance w_z and goes on with chance c_z. With P_k =
diag(p_z(k)), a round that accepts s tokens and then sees a rejection, or accepts all of s offered, moves the kind by

    A_s = P_1 T P_2 T ... P_s T (I - P_{s+1}) T,        F_s = P_1 T P_2 T ... P_s T T:

every token of the round takes one step, the correction or bonus token, which nobody tests, too. So what a round begins
with depends on how the last one ended, at every gamma, which one chance per depth cannot carry over to another gamma.

Behind a whole draft, logit p_z(1) moves by `asked`, which the rounds of the smallest gamma determine (`at_both_ends`).
The likelihood of a text is the mean over u of start M_1 M_2 ... 1 over its rounds (Rabiner 1989, forward and backward
passes, by rounds instead of tokens).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from scipy import optimize, sparse
from scipy.special import expit, logsumexp, softmax

from .laws import rounds_of_texts

KINDS = (1, 2, 3, 4)  # numbers of kinds of stretches that are tried, as long as more are better
LEVELS = np.arange(-4.0, 5.0)  # of texts: a sum over them is a normal mean to eight digits (trapezoidal rule)
FARTHEST = 2.5  # from 0 that the mean level of a length may lie, so that the sum reaches its tails
PIECE = 96  # rounds: longer texts are cut there, so that texts of any length are passed side by side
FEW, MANY, ALL = 4_000, 12_000, 40_000  # rounds that are fitted from each start, for each family, and in the end
NEWTON = 4  # steps on the last of these
PRIOR = 0.02  # of every parameter, squared, in nats: a normal law of standard deviation 5
STEP = 1e-6  # of numerical derivatives
BOUND = 9.0  # of every parameter: a chance within 1.2e-4 of 0 or 1
CERTAIN = 15.0  # of a logit of acceptance with its level and depth


@dataclass(frozen=True)
class Family:
    """The parameters that are free: kinds of stretches, depth of the rounds, and whether what is offered varies."""

    kinds: int
    depth: int
    offers: bool
    centre: float  # mean log length of the texts that are fitted, where the mean level is 0
    alike: bool = False  # all texts have level 0, so that spread, drift and pull say nothing
    asked: bool = False  # a draft behind one that was accepted whole has a chance of its own

    @property
    def levels(self) -> np.ndarray:
        """The levels of texts that are summed over, [Q]."""
        return np.zeros(1) if self.alike else LEVELS

    @property
    def _sizes(self) -> list[int]:
        """Numbers of changes, start, acceptance, slope, spread, drift, pull, silent, going on and asked."""
        kinds = self.kinds
        return [kinds * (kinds - 1), kinds - 1, kinds, 1, 1, 1, kinds > 1, *2 * [kinds * self.offers], self.asked]

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(self._sizes)

    def _split(self, parameters: np.ndarray) -> list[np.ndarray]:
        return np.split(parameters, np.cumsum(self._sizes)[:-1], axis=1)

    def raised(self, parameters: np.ndarray, by: float) -> np.ndarray:
        """Return parameters [size] with every logit of acceptance raised."""
        at, raised = sum(self._sizes[:2]), parameters.copy()
        raised[at : at + self.kinds] += by
        return raised

    def stretches(self, parameters: np.ndarray) -> "Stretches":
        """Return the models of parameters [B, size], one for each level: [B Q, ...], the levels of one side by side."""
        kinds, u = self.kinds, np.tile(self.levels, len(parameters))[:, None]
        repeated = np.repeat(parameters, len(self.levels), axis=0)
        changes, start, a, slope, spread, _, pull, silent, ends, asked = self._split(repeated)
        models = len(u)
        logits = np.zeros((models, kinds, kinds))
        logits[:, ~np.eye(kinds, dtype=bool)] = changes
        first = np.concatenate([np.zeros((models, 1)), start], axis=1)
        if kinds > 1:
            pulled = pull * u * np.arange(kinds) / (kinds - 1)
            logits += pulled[:, None, :]
            first = first + pulled
        k = np.arange(self.depth)
        accept = (a + spread * u)[:, None, :] + slope[:, :, None] * k[None, :, None] / 5
        least = np.ones((models, self.depth + 2, kinds))
        if self.offers:
            powers = expit(ends)[:, None, :] ** k[None, :, None]
            least[:, 1:-1] = expit(-silent)[:, None, :] * powers
        least[:, -1] = 0.0
        chances = expit(np.clip(accept, -CERTAIN, CERTAIN))
        behind = expit(np.clip(accept[:, 0] + asked, -CERTAIN, CERTAIN)) if self.asked else None
        return Stretches(softmax(logits, axis=2), softmax(first, axis=1), chances, least, behind)

    def level_chances(self, parameters: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the log chances [B, U, Q] of the levels of texts of `lengths` [U] tokens."""
        drift = self._split(parameters)[5]
        mean = FARTHEST * np.tanh(drift * (np.log(lengths) - self.centre)[None] / FARTHEST)
        log = -((self.levels - mean[..., None]) ** 2) / 2
        return log - logsumexp(log, axis=2, keepdims=True)

    def rounds_of(self, parameters: np.ndarray, gamma: int, lengths: np.ndarray) -> np.ndarray:
        """Return [B, U] expected rounds of texts of `lengths` [U] tokens."""
        models = self.stretches(parameters)
        moves = models.moves_behind(gamma) if self.asked else models.moves(gamma)
        start = np.pad(models.start, ((0, 0), (0, moves.shape[2] - self.kinds)))  # a text begins behind no draft
        by_level = rounds_of_texts(moves, start, lengths)
        chances = np.exp(self.level_chances(parameters, lengths))
        return np.einsum("bqu,buq->bu", by_level.reshape(len(parameters), len(self.levels), -1), chances)

    def starts(self) -> list[np.ndarray]:
        """Return parameters from which the likelihood is climbed: long stretches and short ones, alike and unlike."""
        points = []
        for leave, ends in ((-1.5, (-3.0, 3.0)), (-3.0, (-1.0, 2.0)), (-2.5, (-3.0, 4.0)))[: 1 + 2 * (self.kinds > 1)]:
            changes = leave - 0.5 * (np.arange(self.kinds * (self.kinds - 1)) % 2)
            a = np.linspace(*ends, self.kinds) if self.kinds > 1 else np.array([0.5])
            offers = [np.linspace(0.0, -2.0, self.kinds), np.linspace(0.5, 2.5, self.kinds)] if self.offers else []
            levels = [0.0, 0.5, 0.0, *[0.0] * (self.kinds > 1)]  # slope, spread, drift, pull
            points.append(np.concatenate([changes, np.zeros(self.kinds - 1), a, levels, *offers]))
        return points


@dataclass(frozen=True)
class Stretches:
    """Models of stretches at one level of the text each, B in all."""

    change: np.ndarray  # [B, K, K] law of the next token's kind
    start: np.ndarray  # [B, K] law of the kind at the first token of a text
    accept: np.ndarray  # [B, G, K] chance that the draft at a depth is accepted if it is tested
    least: np.ndarray  # [B, G + 2, K] chance to offer at least 0, 1, ... G tokens; 0 for more.
    behind: np.ndarray | None = None  # [B, K] chance that the first draft behind a whole one is accepted

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
        """Return [B, gamma + 1, K, K]: chance that a round accepts 0, 1, ... tokens on the way from kind to kind."""
        whole, stopped = self._ends(gamma)
        return whole + stopped

    def moves_behind(self, gamma: int) -> np.ndarray:
        """Return [B, gamma + 1, 2 K, 2 K], as `moves`: kinds behind a whole draft of one token or more come last."""
        accept, rows = self.accept.copy(), []
        accept[:, 0] = self.behind
        for model in (self, replace(self, accept=accept)):
            whole, stopped = model._ends(gamma)
            stopped[:, 0] += whole[:, 0]  # nothing was offered
            whole[:, 0] = 0.0
            rows.append(np.concatenate([stopped, whole], axis=3))
        return np.concatenate(rows, axis=2)

    def _ends(self, gamma: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the shares [B, gamma + 1, K, K] of `moves` of rounds that accept all and that see a rejection."""
        rejected, full = self.steps()
        least = self.least[:, : gamma + 2].copy()
        least[:, gamma + 1] = 0.0
        stopped = np.zeros_like(full[:, : gamma + 1])
        stopped[:, :gamma] = least[:, 1:-1, :, None] * rejected[:, :gamma]
        return (least[:, :-1] - least[:, 1:])[..., None] * full[:, : gamma + 1], stopped

    def outcomes(self, codes: np.ndarray) -> np.ndarray:
        """Return the matrices [B, C, K, K] of outcomes [C, 4]: offered, accepted, rejected, cut (see `Outcomes`)."""
        rejected, full = self.steps()
        offered, accepted, refused, cut = codes.T
        least = self.least[:, offered] - np.where(cut[None, :, None] == 1, 0.0, self.least[:, offered + 1])
        stopped = rejected[:, np.minimum(accepted, rejected.shape[1] - 1)]
        body = np.where(refused[None, :, None, None] == 1, stopped, full[:, accepted])
        return least[..., None] * body


def stationary(change: np.ndarray) -> np.ndarray:
    """Return the law [B, K] that a chain [B, K, K] keeps."""
    kinds = change.shape[1]
    system = np.swapaxes(change, 1, 2) - np.eye(kinds)
    system[:, -1] = 1.0
    return np.linalg.solve(system, np.broadcast_to(np.eye(kinds)[-1][:, None], (len(change), kinds, 1)))[..., 0]


@dataclass(frozen=True)
class Outcomes:
    """Rounds of one gamma as sequences of outcomes."""

    # [C, 4] distinct outcomes: tokens offered, accepted, 1 if a rejection was seen, 1 if the end of the text allowed no
    # longer offer
    codes: np.ndarray
    # [pieces, R] outcome of each round of a piece of a text, the longest piece first; -1 after its end
    rounds: np.ndarray
    first: np.ndarray  # [pieces] True where a piece begins its text
    text: np.ndarray  # [pieces] number of the text
    # prompt, lengths: [texts] prompt and length in tokens of each text
    prompt: np.ndarray
    lengths: np.ndarray
    prompts: int  # number of prompts, of which some may have no text here

    def sample(self, most: int) -> "Outcomes":
        """Return every so manieth text in the order of their lengths, about `most` rounds, first and last included."""
        step = -(-int((self.rounds >= 0).sum()) // most)
        if step == 1:
            return self
        kept = np.sort(np.argsort(self.lengths, kind="stable")[step // 2 :: step])
        inside = np.isin(self.text, kept)
        rounds = self.rounds[inside]
        rounds = rounds[:, (rounds >= 0).any(axis=0)]
        text = np.searchsorted(kept, self.text[inside])
        prompt, lengths = self.prompt[kept], self.lengths[kept]
        return replace(self, rounds=rounds, first=self.first[inside], text=text, prompt=prompt, lengths=lengths)

    def taken(self, gamma: int) -> "Taken":
        """Return the texts with the rounds that they took, of this gamma."""
        by_text = np.bincount(self.text, (self.rounds >= 0).sum(axis=1), len(self.lengths))
        return Taken(gamma, self.prompt, self.lengths.astype(np.int64), np.bincount(self.prompt, by_text, self.prompts))


def make_trace(table: Mapping[str, np.ndarray], prompts: int) -> Outcomes:
    """Return the trace of rounds in order. table: text, prompt (numbers), offered, accepted, rejected, room (the most
    that could be offered), committed [N]; prompts: more than the largest number of a prompt.
    """
    offered, accepted, rejected, room = (table[name] for name in ("offered", "accepted", "rejected", "room"))
    columns = np.stack([offered, accepted, rejected, offered >= room], axis=1).astype(np.int64)
    radix = int(columns.max(initial=0)) + 1
    key = ((columns[:, 0] * radix + columns[:, 1]) * 2 + columns[:, 2]) * 2 + columns[:, 3]
    _, first_at, code = np.unique(key, return_index=True, return_inverse=True)
    text = np.unique(table["text"], return_inverse=True)[1]
    begins = np.flatnonzero(np.diff(text, prepend=-1))
    place = np.arange(len(text)) - begins[text]
    starts = np.flatnonzero(place % PIECE == 0)
    sizes = np.diff(np.append(starts, len(text)))
    order = np.argsort(-sizes, kind="stable")
    rounds = np.full((len(starts), int(sizes.max())), -1, dtype=np.int16)
    rounds[np.repeat(np.argsort(order), sizes), place % PIECE] = code
    first = (place[starts] == 0)[order]
    lengths = np.bincount(text, table["committed"])
    return Outcomes(columns[first_at], rounds, first, text[starts][order], table["prompt"][begins], lengths, prompts)


def _passes(trace: Outcomes, matrices: np.ndarray, begin: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return by piece the log-likelihoods [n, Q], the forward laws before each round [R, n, Q, K], the backward values
    after it over the chance of the round [R, n, Q, K], and the backward values at the first round [n, Q, K].
    matrices: [C, Q, K, K] of outcomes; begin: [n, Q, K] laws at the first round of each piece.
    """
    active = (trace.rounds >= 0).sum(axis=0)
    pieces, length = trace.rounds.shape
    before = np.zeros((length, *begin.shape))
    chance = np.ones((length, *begin.shape[:2]))
    law = begin
    for r in range(length):
        n = active[r]
        before[r, :n] = law[:n]
        law = np.einsum("nqi,nqij->nqj", law[:n], matrices[trace.rounds[:n, r]])
        chance[r, :n] = law.sum(axis=2)
        law /= chance[r, :n, :, None]
    after = np.zeros_like(before)
    value = np.ones_like(begin)
    for r in range(length - 1, -1, -1):
        n = active[r]
        after[r, :n] = value[:n] / chance[r, :n, :, None]
        value[:n] = np.einsum("nqij,nqj->nqi", matrices[trace.rounds[:n, r]], after[r, :n])
    return np.log(chance).sum(axis=0), before, after, value


@dataclass(frozen=True)
class Taken:
    """Texts of one gamma, and the rounds that they took."""

    gamma: int
    # prompt, lengths: [texts] number of the prompt and tokens of each text
    prompt: np.ndarray
    lengths: np.ndarray
    rounds: np.ndarray  # [P] of all texts of each prompt

    @property
    def tokens(self) -> np.ndarray:
        """The tokens of all texts of each prompt, [P]."""
        return np.bincount(self.prompt, self.lengths, len(self.rounds))

    def of(self, inside: np.ndarray) -> "Taken":
        """Return the texts of some prompts, True in [P]."""
        ours = inside[self.prompt]
        return replace(self, prompt=self.prompt[ours], lengths=self.lengths[ours], rounds=self.rounds * inside)

    def too_many(self, family: Family, x: np.ndarray) -> float:
        """Return the logarithm of the rounds that are expected at parameters x [size] over those taken."""
        lengths, count = np.unique(self.lengths, return_counts=True)
        return float(np.log(family.rounds_of(x[None], self.gamma, lengths)[0] @ count / self.rounds.sum()))

    def by_prompt(self, family: Family, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the rounds that are expected of each prompt less those taken [P], and their slopes [P, size]."""
        lengths, place = np.unique(self.lengths, return_inverse=True)
        rounds, slopes = _with_slopes(family, x, self.gamma, lengths)
        rise = np.zeros((len(self.rounds), len(x)))
        np.add.at(rise, self.prompt, slopes.T[place])
        return np.bincount(self.prompt, rounds[place], len(self.rounds)) - self.rounds, rise


class Likelihood:
    """The log-likelihood of a trace, its slope, and the slopes of each prompt."""

    def __init__(self, family: Family, trace: Outcomes) -> None:
        self._family, self._trace = family, trace
        self._seen = trace.rounds.T >= 0
        self._pieces = np.nonzero(self._seen)[1]  # of each round
        self.rounds = len(self._pieces)

    @staticmethod
    def _slope(values: np.ndarray) -> np.ndarray:
        return (values[1:] - values[0]) / STEP

    def negative(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Return minus the log-likelihood per round, with the prior, and its slope [size]."""
        value, slopes = self._by_group(x, np.zeros(len(self._trace.prompt), dtype=int), 1)
        return (PRIOR * float(x @ x) - value) / self.rounds, (2 * PRIOR * x - slopes[0]) / self.rounds

    def climb(self, x: np.ndarray, turns: int, iterations: int) -> tuple[float, np.ndarray]:
        """Return `negative` near its minimum, and the parameters there.

        Each turn searches a box around the last point: without it the first steps, before the curvature is known, leap
        to corners where kinds are alike or never entered, and stay there.
        """
        value, options = np.inf, {"maxiter": iterations, "ftol": 1e-2 / self.rounds, "gtol": 1e-6}
        for _ in range(turns):
            box = np.clip([x - 1, x + 1], -BOUND, BOUND)
            minimum = optimize.minimize(
                self.negative, x, jac=True, method="L-BFGS-B", bounds=box.T.tolist(), options=options
            )
            value, x = float(minimum.fun), minimum.x
            if minimum.nit < iterations and (((box[0] < x) & (x < box[1])) | (abs(x) == BOUND)).all():
                break
        return value, x

    def curvature(self, x: np.ndarray) -> np.ndarray:
        """Return the second derivatives of minus the log-likelihood, [size, size], eigenvalues at least the prior's."""
        slope = self.negative(x)[1]
        rows = [(self.negative(x + step)[1] - slope) * self.rounds / 1e-3 for step in 1e-3 * np.eye(len(x))]
        values, vectors = np.linalg.eigh((np.array(rows) + np.array(rows).T) / 2)
        return (vectors * np.maximum(values, 2 * PRIOR)) @ vectors.T

    def by_prompt(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the log-likelihood and its slope by prompt [P, size], without the prior."""
        return self._by_group(x, self._trace.prompt, self._trace.prompts)

    def _by_group(self, x: np.ndarray, group: np.ndarray, groups: int) -> tuple[float, np.ndarray]:
        """Return the log-likelihood and its slope by group of texts [groups, size], without the prior."""
        trace, levels = self._trace, len(self._family.levels)
        # The matrices of outcomes [.., Q, C, K, K] and the laws [.., Q, 2, K] in the middle and at the first round of
        # a text, at x and a step up in each parameter: 1 + size of them.
        parameters = np.concatenate([x[None], x + STEP * np.eye(len(x))])
        models = self._family.stretches(parameters)
        middle = stationary(models.moves(self._family.depth).sum(axis=1))
        begin = np.stack([middle, models.start], axis=1)
        begin = begin.reshape(len(parameters), levels, *begin.shape[1:])
        matrices = models.outcomes(trace.codes)
        matrices = matrices.reshape(len(parameters), levels, *matrices.shape[1:])
        first = trace.first * 1
        at_x = np.ascontiguousarray(matrices[0].swapaxes(0, 1))
        by_piece, before, after, value = _passes(trace, at_x, begin[0][:, first].swapaxes(0, 1))
        # The levels of a text given its rounds: all its pieces have one.
        prior = self._family.level_chances(parameters, trace.lengths)
        joint = prior[0].copy()
        np.add.at(joint, trace.text, by_piece)
        total = logsumexp(joint, axis=1)
        posterior = np.exp(joint - total[:, None])  # [texts, Q]
        # How often a round with some outcome leads from one kind to another, by group: [groups, C, Q, K, K].
        owner, codes = trace.text[self._pieces], len(trace.codes)
        passed = (before[self._seen] * posterior[owner][..., None])[..., None] * after[self._seen][:, :, None, :]
        cell = group[owner] * codes + trace.rounds.T[self._seen]
        entries = (np.ones(self.rounds), (cell, np.arange(self.rounds)))
        places = sparse.csr_matrix(entries, (groups * codes, self.rounds))
        count = (places @ passed.reshape(self.rounds, -1)).reshape(groups, codes, levels, *passed.shape[2:])
        slopes = np.einsum("gcqij,pqcij->gp", count, self._slope(matrices), optimize=True)
        starts = np.einsum("pqnk,nqk,nq->np", self._slope(begin)[:, :, first], value, posterior[trace.text])
        np.add.at(slopes, group[trace.text], starts)
        np.add.at(slopes, group, np.einsum("ptq,tq->tp", self._slope(prior), posterior))
        return float(total.sum()), slopes


@dataclass(frozen=True)
class StretchesFit:
    """The fit to some texts: parameters [size] that expect as many rounds of them as were taken, and their spread."""

    family: Family
    parameters: np.ndarray
    slopes: np.ndarray  # [P, size] of the log-likelihood of `rounds` rounds, by prompt
    curvature: np.ndarray  # [size, size] minus its second derivatives
    rounds: int
    likeliest: np.ndarray  # parameters of the maximum of the likelihood, before they were moved to expect those rounds
    taken: tuple[Taken, ...]  # what they were moved for: the rounds of one gamma or two
    moved: np.ndarray  # [gammas, size] along which directions

    def steps(self, weights: np.ndarray) -> np.ndarray:
        """Return how far the parameters of replicates lie from those of the data, [B, size], to first order.

        weights: [B, P] how often each prompt counts; the first row is the data (infinitesimal jackknife, Efron 2014).
        In directions that the data hardly determine no step is longer than 1, which is a lot for a logit.
        """
        steps = np.linalg.solve(self.curvature, ((weights - weights[:1]) @ self.slopes).T).T
        steps = np.clip(steps, -1, 1)
        found = [each.by_prompt(self.family, self.parameters) for each in self.taken]
        missing = np.stack([weights @ expected for expected, _ in found], axis=1)
        rise = np.stack([weights @ slopes for _, slopes in found], axis=1)  # [B, gammas, size]
        missing += np.einsum("bgs,bs->bg", rise, steps)
        back = np.linalg.pinv(np.einsum("bgs,ds->bgd", rise, self.moved)) @ missing[..., None]
        return steps - back[..., 0] @ self.moved

    def rounds_of(self, gamma: int, lengths: np.ndarray, steps: np.ndarray | None = None) -> np.ndarray:
        """Return [B, U] expected rounds of texts of `lengths` [U] at parameters that lie `steps` [B, size] from those
        of the fit, to first order in their logarithm; [1, U] those of the fit without.
        """
        if steps is None:
            return self.family.rounds_of(self.parameters[None], gamma, lengths)
        value, slopes = _with_slopes(self.family, self.parameters, gamma, lengths)
        # No step leads to more tokens in a round than can be.
        return np.clip(value * np.exp(steps @ (slopes / value)), lengths / (gamma + 1), lengths)

    def offered(self, gamma: int, lengths: np.ndarray) -> np.ndarray:
        """Return [gamma + 1] the shares of rounds that offer 0, 1, ... tokens, in texts of `lengths` [U] tokens."""
        models = self.family.stretches(self.parameters[None])
        least = np.einsum("qdk,qk->qd", models.least[:, : gamma + 1], stationary(models.moves(gamma).sum(axis=1)))
        levels = np.exp(self.family.level_chances(self.parameters[None], lengths))[0].mean(axis=0)
        return -np.diff(levels @ least, append=0.0)


def _with_slopes(family: Family, x: np.ndarray, gamma: int, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the expected rounds [U] of texts of `lengths` [U] and their slopes [size, U]."""
    rounds = family.rounds_of(np.concatenate([x[None], x + STEP * np.eye(len(x))]), gamma, lengths)
    return rounds[0], (rounds[1:] - rounds[0]) / STEP


def fit_stretches(depth: int, offers: bool, trace: Outcomes, near: StretchesFit | None = None) -> StretchesFit:
    """Fit by maximum likelihood: on some of the texts from several starts, then by Newton's steps on more of them, so
    that the time hardly grows with the texts. Kinds are added as long as AIC falls. At last acceptance is raised or
    lowered, alike in all kinds, until the fit expects as many rounds of all texts as were taken: what no such model can
    follow is then not in the mean. near: a fit to texts of the same source, whose number of kinds is kept and whose
    maximum is the start.
    """
    sample = trace.sample(ALL)
    many = sample.sample(MANY)
    few = many.sample(FEW)
    whole = int((sample.rounds >= 0).sum())
    centre = float(np.log(trace.lengths).mean())

    def climbed(kinds: int) -> tuple[float, Family, np.ndarray]:
        # First with texts that are alike: where levels are free at once, they stand in for kinds.
        family, alike = (Family(kinds, depth, offers, centre, alike) for alike in (False, True))
        near = [Likelihood(alike, few).climb(x, 3, 15)[1] for x in family.starts()]
        x = min((Likelihood(alike, many).climb(x, 6, 20) for x in near), key=lambda climb: climb[0])[1]
        value, x = Likelihood(family, many).climb(x, 5, 15)
        return 2 * family.size + 2 * value * whole, family, x

    if near is None:
        best, family, x = climbed(KINDS[0])
        for kinds in KINDS[1:]:
            criterion, richer, there = climbed(kinds)
            if criterion >= best:
                break
            best, family, x = criterion, richer, there
        of_many = Likelihood(family, many)
        curvature = of_many.curvature(x) * whole / of_many.rounds
    else:
        family, x, curvature = near.family, near.likeliest, near.curvature * whole / near.rounds
    likelihood = Likelihood(family, sample)
    value, slopes = likelihood.by_prompt(x)
    for _ in range(NEWTON):
        ahead = np.linalg.solve(curvature, slopes.sum(axis=0) - 2 * PRIOR * x)
        nearer = np.clip(x + np.clip(ahead, -1, 1), -BOUND, BOUND)
        better, there = likelihood.by_prompt(nearer)
        if better - PRIOR * nearer @ nearer <= value - PRIOR * x @ x:
            break
        x, value, slopes = nearer, better, there
    taken, raised, moved = trace.taken(depth), family.raised(np.zeros(len(x)), 1.0), x

    def too_many(by: float) -> float:
        return taken.too_many(family, x + by * raised)

    if too_many(-BOUND) > 0 > too_many(BOUND):
        moved = x + optimize.brentq(too_many, -BOUND, BOUND, xtol=1e-4) * raised
    return StretchesFit(family, moved, slopes, curvature, whole, x, (taken,), raised[None])


def at_both_ends(fit: StretchesFit, shortest: Taken) -> StretchesFit:
    """Return a fit that expects as many rounds of the smallest gamma, too, as were taken, by what a draft behind a
    whole one is worth; of both gammas as nearly as can be, where they would need more of it than a certain acceptance.
    """
    family, x = replace(fit.family, asked=True), np.append(fit.parameters, 0.0)
    moved = np.stack([family.raised(np.zeros(len(x)), 1.0), np.eye(len(x))[-1]])
    taken = (*fit.taken, shortest)

    def missed(by: np.ndarray) -> list[float]:
        return [each.too_many(family, x + by @ moved) for each in taken]

    by = optimize.least_squares(missed, np.zeros(2), bounds=(-BOUND, BOUND)).x
    slopes, curvature = np.pad(fit.slopes, ((0, 0), (0, 1))), np.pad(fit.curvature, (0, 1))
    curvature[-1, -1] = 1.0  # the likelihood says nothing of it: its step follows from the rounds
    return replace(
        fit, family=family, parameters=x + by @ moved, slopes=slopes, curvature=curvature, taken=taken, moved=moved
    )
