"""The statistical level of a certificate: draws of a combination on the user's own target and prompts, their tests, and
the verdicts at a stated rate of false alarms.

Every round of ordinary texts is one draw, from the state that earlier rounds left, acceptances and rejections alike. A
token is counted by its class, because each place has a law of its own: by its rank under p, and by p over q. At single
places rounds are drawn again and again from one state. Where drafts are point masses, one draft is made and the target
called once: acceptance alone is random, and is drawn thousands of times. Where drafts are drawn, whole rounds are drawn
again, and the target is called once for each draft that differs.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isnan, nan, sqrt
from typing import Any

import numpy as np
import torch
from scipy import optimize, stats
from torch import Tensor

from specdec.certification.certificate import Check, judged
from specdec.clock import CpuClock
from specdec.config import CertificateConfig
from specdec.decode import decode_round
from specdec.progress import stage
from specdec.records import Acceptance, Draft, Generation, Request, TextStart, chain_tree
from specdec.sampling import one_hot, probabilities, sample
from specdec.session.arm import Arm, seeded_request
from specdec.targets.base import Target
from specdec.verifiers.base import Verifier

Texts = Sequence[tuple[str, Sequence[int]]]  # prompts: name and tokens

# Ends of the classes by rank (the most likely token, the next one, ranks 3 and 4, ..., all from 65 on), and by p over q
# (tokens that are drafted too often, about right, too seldom).
_RANKS = torch.tensor([1, 2, 4, 8, 16, 64])
_RATIOS = torch.tensor([0.5, 0.8, 1.0, 1.25, 2.0])
_FRESH_TEXTS = 16  # texts over which a fresh pass is made: what a commit leaves wrong is wrong in all of them
_DRAWN = 8  # tokens of a draft whose laws are looked at: the first ones
_FIRST = 3  # classes of the first token in the joint test: rank 1, rank 2, all others
_MOST_ROUNDS = 8  # of a text before a place
_FOLLOWED = 10  # first tokens after which the second is looked at: the most likely ones
_KEPT_BYTES = 1 << 26  # of laws that are kept for drafts that may come again
LEAST = 5.0  # the smallest expected count of a cell, and the smallest variance of its count; rarer cells are pooled


class Tally:
    """Counts draws in cells [C] beside what their laws expect."""

    def __init__(self, cells: int) -> None:
        self.observed, self.expected = np.zeros(cells), np.zeros(cells)
        # The covariance of the counts is the sum of diag(law) - law law^T over the draws, given what came before each.
        self.covariance = np.zeros((cells, cells))
        self.impossible = 0  # draws that have no chance under their law, of which one is enough

    @property
    def draws(self) -> int:
        return int(self.observed.sum())

    def add(self, law: np.ndarray, counts: np.ndarray) -> None:
        """Add draws from one law [C] by their counts [C]."""
        law = law / law.sum()
        number = counts.sum()
        self.observed += counts
        self.expected += number * law
        self.covariance += number * (np.diag(law) - np.outer(law, law))

    def add_one(self, law: np.ndarray, cell: int, impossible: bool = False) -> None:
        """Add one draw from a law [C]."""
        counts = np.zeros(len(law))
        counts[cell] = 1
        self.add(law, counts)
        self.impossible += impossible


@dataclass(frozen=True)
class Tested:
    """A test of what was drawn."""

    name: str
    draws: int
    statistic: float  # chi-square
    freedom: int  # of the statistic; 0 where the draws were too few, or the laws too sure, for a test
    p_value: float  # the chance of such a statistic, or a larger one, under the laws

    def detectable(self, level: float, power: float = 0.9) -> float:
        """Return a total variation that this test finds with the given power at a level: any shift of the mean law over
        its cells that is at least as large is found at least as surely. NaN where there was no test.

        A shift d of the cells' mean law makes the statistic noncentral by at least draws * sum d^2 / law, which is
        smallest, 4 draws TV^2, for a shift between halves of the law.
        """
        if not self.freedom:
            return nan
        bound = stats.chi2.isf(level, self.freedom)

        def missing(noncentrality: float) -> float:
            return float(stats.ncx2.sf(bound, self.freedom, noncentrality) - power)

        needed = optimize.brentq(missing, 1e-6, 10 * bound + 100)
        return min(1.0, sqrt(needed / (4 * self.draws)))


def chi_square(name: str, tally: Tally) -> Tested:
    """Test the counts of a tally: (O - E)^T C^+ (O - E) with the covariance C of the counts; this is Pearson's sum of
    (O - E)^2 / E where all draws have one law.

    Rare cells are pooled until each has an expected count and a variance of at least `LEAST`, where that is possible:
    by what is expected, never by what was seen, so that pooling biases nothing.
    """

    def size(cells: list[int]) -> float:
        return float(min(tally.expected[cells].sum(), tally.covariance[np.ix_(cells, cells)].sum()))

    groups = sorted(([cell] for cell in range(len(tally.expected))), key=size)
    while len(groups) > 1 and size(groups[0]) < LEAST:
        groups = sorted([groups[0] + groups[1], *groups[2:]], key=size)
    merge = np.zeros((len(groups), len(tally.expected)))
    for row, cells in enumerate(groups):
        merge[row, cells] = 1.0
    excess = merge @ (tally.observed - tally.expected)
    values, vectors = np.linalg.eigh(merge @ tally.covariance @ merge.T)
    kept = values > 1e-9 * max(values.max(initial=0.0), 1e-300)
    freedom = int(kept.sum()) if len(groups) > 1 else 0
    if tally.impossible:
        return Tested(name, tally.draws, float("inf"), max(1, freedom), 0.0)
    if not freedom:
        return Tested(name, tally.draws, 0.0, 0, 1.0)
    statistic = float(((vectors.T @ excess)[kept] ** 2 / values[kept]).sum())
    return Tested(name, tally.draws, statistic, freedom, float(stats.chi2.sf(statistic, freedom)))


def rank_class(p: Tensor, token: int) -> tuple[np.ndarray, int]:
    """Return the chances of the classes by rank under p [V], and the class of a token; ties are broken by order."""
    chances = p.topk(min(int(_RANKS[-1]), len(p))).values.cumsum(0)
    ends = chances[(_RANKS - 1).clamp_max(len(chances) - 1)]
    law = torch.cat([ends[:1], ends.diff(), (p.sum() - ends[-1:])]).clamp_min(0.0)
    rank = int((p > p[token]).sum()) + int((p[:token] == p[token]).sum())
    return law.numpy(), int(torch.searchsorted(_RANKS, torch.tensor(rank), right=True))


class LiveRounds(Verifier):
    """Decides as another rule does, and counts the rounds of all texts so far: their first token by rank and by ratio,
    the drawn tokens of all drafts, and the second token, whichever round commits it, given the class of the first.
    """

    def __init__(self, rule: Verifier) -> None:
        self.rule, self.capabilities = rule, rule.capabilities
        classes = len(_RANKS) + 1
        self.by_rank, self.by_ratio = Tally(classes), Tally(len(_RATIOS) + 1)
        self.drafted, self.second = Tally(classes + 1), Tally(_FIRST * classes)
        # Total variations at places of the first texts: between the law that a round used and that of a fresh pass, and
        # between fresh passes in the target's own arithmetic and in float32.
        self.apart: list[float] = []
        self.rounding: list[float] = []
        self.texts = 0
        # By round of the text: p at the root, and after the first token where that was a node of the draft [1 or 2, V];
        # and the law q [V] that the first draft was drawn from, None where nothing was offered.
        self._seen: list[tuple[Tensor, Tensor | None]] = []

    def accept(self, draft: Draft, p: Tensor, generator: torch.Generator | None) -> Acceptance:
        self._count_drawn(draft)
        acceptance = self.rule.accept(draft, p, generator)
        rows = [0, acceptance.path[0] + 1] if acceptance.path else [0]
        q = None
        if len(draft):
            first = draft.tests[0][0]
            q = one_hot(draft.tokens[first], p.shape[-1]) if draft.q is None else draft.q[first]
            q = q.double().cpu()
        self._seen.append((p[rows].double().cpu(), q))
        return acceptance

    def _count_drawn(self, draft: Draft) -> None:
        """Count drawn tokens by their rank under the law q that each was drawn from, in the order of the draws: the
        claim that travels with a draft, on which every rule that reads q relies. A token that an earlier sibling has is
        a class of its own, the last: draws with replacement repeat tokens.
        """
        if draft.q is None:
            return
        tokens = draft.tokens.tolist()
        drawn = [(child, children[:place]) for children in draft.tests for place, child in enumerate(children)]
        for child, siblings in drawn[:_DRAWN]:
            q, token = draft.q[child].double().cpu(), tokens[child]
            chances, cell = rank_class(q, token)
            law = np.append(chances, 0.0)
            earlier = {tokens[sibling] for sibling in siblings}
            for other in earlier:
                chance = float(q[other])
                law[rank_class(q, other)[1]] -= chance
                law[-1] += chance
            self.drafted.add_one(law.clip(0.0), len(law) - 1 if token in earlier else cell, bool(q[token] == 0))

    @torch.inference_mode()
    def count(self, target: Target, generation: Generation) -> None:
        """Count the rounds of the text that was just decoded, and compare their laws with those of a fresh pass."""
        tokens, place = generation.tokens, 0  # of the first token of a round in the output
        used: list[tuple[int, Tensor]] = []  # places, and the laws there by which a token was decided
        seen, self._seen = self._seen, []
        for number, row in enumerate(generation.rounds):
            (p, *after), q = seen[number]
            token = tokens[place]
            chances, group = rank_class(p, token)
            self.by_rank.add_one(chances, group, bool(p[token] == 0))
            if q is not None:
                ratio = torch.where(q > 0, p / q.clamp_min(torch.finfo(q.dtype).tiny), torch.inf)
                classes = torch.bucketize(ratio, _RATIOS.to(ratio))
                law = torch.zeros(len(_RATIOS) + 1, dtype=p.dtype).index_add_(0, classes, p)
                self.by_ratio.add_one(law.numpy(), int(classes[token]))
            used.append((place, p))
            # A second token is there unless the end token or the limit came first, which the first one decides.
            known = [*after, *(rows[0] for rows, _ in seen[number + 1 : number + 2])]
            if token not in target.end_tokens and place + 1 < len(tokens) and known:
                law, second = known[0], tokens[place + 1]
                chances, cell = rank_class(law, second)
                begin = min(group, _FIRST - 1) * len(chances)
                padded = np.zeros(_FIRST * len(chances))
                padded[begin : begin + len(chances)] = chances
                self.second.add_one(padded, begin + cell, bool(law[second] == 0))
                used.append((place + 1, law))
            place += len(row.committed)
        if self.texts < _FRESH_TEXTS:
            own, wide = (  # [T + 1, V], in the arithmetic of decoding and in float32 or better
                probabilities(score(generation.prompt, tokens), target.sampling).double().cpu()
                for score in (target.score_as_decoded, target.score)
            )
            for place, p in used:
                self.apart.append(float((p - own[place]).abs().sum() / 2))
                self.rounding.append(float((own[place] - wide[place]).abs().sum() / 2))
        self.texts += 1

    def tests(self) -> list[Tested]:
        return [
            chi_square("first token of a round, by rank under p", self.by_rank),
            chi_square("first token of a round, by p over q", self.by_ratio),
            chi_square("second token given the first, by rank", self.second),
            chi_square("drawn drafts against their own q, by rank", self.drafted),
        ]

    def states(self) -> Check:
        """Return whether the laws that rounds used are those of fresh passes over the same texts: a state that a
        rejection or a commit left wrong moves them. Rounding may: the bound is a thousandth, and three times what
        rounding to the target's own arithmetic moves.
        """
        apart, bound = float(np.mean(self.apart)), 1e-3 + 3 * float(np.mean(self.rounding))
        name, compared = "states after commits", "p of every round with a fresh pass over the text"
        statistic = f"mean TV {apart:.1e} (at most {bound:.1e})"
        fault = "" if apart <= bound else "the target's state is not that of its text"
        facts = {"mean_tv": apart, "largest_tv": float(np.max(self.apart)), "bound": bound}
        return judged("statistical", name, compared, len(self.apart), statistic, fault, facts=facts)


def _go_to(arm: Arm, request: Request, wanted: int) -> None:
    """Write a text `wanted` rounds on, or more until one was rejected, up to a limit: the state to draw rounds from."""
    target, structure, prompt = arm.target, arm.structure, request.prompt
    length = len(prompt) + request.max_new_tokens
    capacity = length + max(target.room(structure.tree), target.room(chain_tree(1)))
    target.start(TextStart(prompt, capacity, structure.branches))
    drafts = length + structure.nodes + 1
    arm.drafter.start(TextStart(prompt, drafts, generator=request.draft_generator, in_step=True), target.states)
    written = 0
    for done in range(_MOST_ROUNDS):
        if written + structure.gamma + 2 > request.max_new_tokens:
            break
        decided, _ = decode_round(target, arm.drafter, arm.verifier, structure, request.accept_generator, CpuClock())
        written += len(decided.committed)
        if done + 1 >= wanted and len(decided.committed) <= structure.gamma:
            break


def _p(target: Target, draft: Draft) -> Tensor:
    """Return p [N+1, V] for a draft and leave the state as it was."""
    p = target.verify(draft).clone()
    target.discard()
    return p


def _decisions(
    arm: Arm, generator: torch.Generator | None, asked: CertificateConfig
) -> Iterator[tuple[np.ndarray, list[int], np.ndarray | None]]:
    """Yield for each round drawn here the law [V] of its first token, the tokens that it commits, and the law [V] of a
    second one, if any: `redraws` rounds where acceptance alone is random, `redrafts` where drafts are as well.
    """
    draft = arm.drafter.draft(arm.structure)
    fixed = draft.q is None
    kept: dict[tuple[tuple[int, ...], tuple[int, ...]], Tensor] = {}
    for number in range(asked.redraws if fixed else asked.redrafts):
        if number and not fixed:
            draft = arm.drafter.draft(arm.structure)
        key = draft.tree.parents, tuple(draft.tokens.tolist())
        p = kept.get(key)
        if p is None:
            p = _p(arm.target, draft)
            if len(kept) < _KEPT_BYTES // p.nbytes:
                kept[key] = p
        acceptance = arm.verifier.accept(draft, p, generator)
        path = acceptance.path
        tokens = [*(acceptance.tokens[node] for node in path), acceptance.next_token]
        second = p[path[0] + 1].double().cpu().numpy() if path else None
        yield p[0].double().cpu().numpy(), tokens, second


@torch.inference_mode()
def redraw(arm: Arm, request: Request, wanted: int, asked: CertificateConfig, label: str) -> list[Tested]:
    """Draw rounds again at one place of a text, `wanted` rounds on: test the first token, and the first two together.
    The request has generators of this place alone, and `label` is the place in words.

    A round that commits one token is completed by the target itself: the second token is drawn from its law after the
    first, and the pair has the target's law if what the round commits has (theory.md 1.1).
    """
    _go_to(arm, request, wanted)
    target, generator = arm.target, request.accept_generator
    total, seconds = np.zeros(target.vocab_size), defaultdict[int, Any](float)  # sums of laws [V]
    counts, alone, pairs = Counter[int](), Counter[int](), defaultdict[int, Counter[int]](Counter)
    for p, tokens, following in _decisions(arm, generator, asked):
        total += p
        counts[tokens[0]] += 1
        if following is None:
            alone[tokens[0]] += 1
        else:
            seconds[tokens[0]] += following
            pairs[tokens[0]][tokens[1]] += 1
    number = counts.total()
    law = total / number
    # The first token: a cell for each that is expected often enough.
    cells = [int(token) for token in np.flatnonzero(number * law >= LEAST)]
    impossible = sum(times for token, times in counts.items() if law[token] == 0)
    single = _tally(number, law[cells].tolist(), [counts[token] for token in cells], impossible)
    # Pairs: cells for a likely first token with each second one that is expected often enough and with all others.
    chances, observed, impossible = list[float](), list[int](), 0
    for token in (int(each) for each in np.argsort(-law, kind="stable")[:_FOLLOWED] if number * law[each] >= LEAST):
        drawn = pairs[token]
        if alone[token] or not drawn:
            after = _p(target, Draft(torch.tensor([token], device=target.device), chain_tree(1)))[1]
            seconds[token] += max(1, alone[token]) * after.double().cpu().numpy()
            if alone[token]:
                drawn.update(sample(after.expand(alone[token], -1), generator).tolist())
        second = seconds[token] / max(1, drawn.total())
        likely = [int(cell) for cell in np.flatnonzero(number * law[token] * second >= LEAST)]
        known = [drawn[cell] for cell in likely]
        chances += [float(law[token] * chance) for chance in (*second[likely], max(0.0, 1 - second[likely].sum()))]
        observed += [*known, drawn.total() - sum(known)]
        impossible += sum(times for cell, times in drawn.items() if second[cell] == 0)
    pair = _tally(number, chances, observed, impossible)
    return [chi_square(f"{label}: first token", single), chi_square(f"{label}: first two tokens", pair)]


def _tally(number: int, chances: list[float], observed: list[int], impossible: int) -> Tally:
    """Return the counts of `number` draws from one law, in cells of these chances and one for everything else."""
    tally = Tally(len(chances) + 1)
    tally.add(np.array([*chances, max(0.0, 1 - sum(chances))]), np.array([*observed, number - sum(observed)]))
    tally.impossible = impossible
    return tally


@dataclass(frozen=True)
class DrawnTests:
    """All tests of a combination before they are judged together."""

    live: list[Tested]
    single: list[Tested]  # of each single place in turn, its first token and its first two
    states: Check  # the rounds' laws against fresh passes, without chance
    level: float  # of each test, so that all together raise a false alarm at most as often as was asked (Bonferroni)

    def checks(self) -> list[Check]:
        """Return the checks: one for each test of live rounds, and one for each kind of test at single places."""
        level, checks = self.level, [self.states]
        for tests in (*([test] for test in self.live), self.single[0::2], self.single[1::2]):
            worst, several = min(tests, key=lambda test: test.p_value), len(tests) > 1
            failed = [test.name for test in tests if test.p_value < level]
            name = f"{worst.name.partition(': ')[2]}, {len(tests)} single places" if several else worst.name
            compared = "q, the law told with each draft" if "their own q" in name else "p, the target's law there"
            draws = sum(test.draws for test in tests)
            shifts = [test.detectable(level) for test in tests]
            told = [{**vars(t), "detectable_tv": None if isnan(s) else s} for t, s in zip(tests, shifts, strict=True)]
            facts = {"level": level, "tests": told}
            if not any(test.freedom for test in tests):
                why = "too few draws, or laws that are too sure, for a test" if draws else "nothing was drawn"
                checks.append(Check("statistical", name, compared, draws, "", "not applicable", None, why, facts))
                continue
            statistic = f"chi2({worst.freedom}) = {worst.statistic:.1f}" + (", the largest" if several else "")
            fault = f"p below {level:.1e} at {', '.join(failed)}" if failed else ""
            shown = {"p_value": worst.p_value, "facts": facts}
            checks.append(judged("statistical", name, compared, draws, statistic, fault, **shown))
        return checks

    def power(self) -> list[str]:
        """Return what the tests would have found in 9 cases of 10, in words."""
        sentences = []
        for what, tests in (
            ("averaged over all rounds, a shift between the classes of the first token", self.live[:2]),
            ("at one of the single places, a shift of the first token's law", self.single[0::2]),
        ):
            found = (test.detectable(self.level) for test in tests)
            known = sorted(value for value in found if not isnan(value))
            if known:
                sentences.append(f"{what} by a total variation of {known[len(known) // 2]:.3f} or more")
        return sentences


def draw(arm: Arm, texts: Texts, asked: CertificateConfig, limit: int, seed: int) -> DrawnTests:
    """Draw what the statistical level needs of an arm at a temperature, from texts of at most `limit` tokens."""
    live = LiveRounds(arm.verifier)
    watched = replace(arm, verifier=live)
    with stage("Draw rounds", total=asked.rounds, shorter="certificate.rounds=N draws fewer") as under_way:
        while live.by_rank.draws < asked.rounds:
            request = drawn_request(arm, texts, limit, seed, live.texts, f"text {live.texts}")
            generation = watched.decode(request, CpuClock())
            live.count(arm.target, generation)
            under_way.advance(len(generation.rounds))
    single: list[Tested] = []
    shorter = "certificate.places=N, redraws=N and redrafts=N draw less"
    with stage("Draw at single places", total=asked.places, shorter=shorter) as under_way:
        for place in range(asked.places):
            request = drawn_request(arm, texts, limit, seed, place, f"place {place}")
            single += redraw(arm, request, 1 + place % 5, asked, f"place {place + 1}")
            under_way.advance()
    tests = live.tests()
    return DrawnTests(tests, single, live.states(), level=asked.false_alarm / (len(tests) + len(single)))


def drawn_request(arm: Arm, texts: Texts, limit: int, seed: int, number: int, purpose: str) -> Request:
    """Return the text of a number, counted through `texts` again and again, with random numbers of its own purpose."""
    purposes = f"certify/draft/{purpose}", f"certify/accept/{purpose}"
    return seeded_request(arm.target, texts[number % len(texts)], limit, seed, purposes)
