"""A simulated server with continuous batching: requests, the seconds of its steps, policies, and the event loop.

A request's output is known beforehand; what the server decides is in how many rounds it is committed. Between two steps
the oldest waiting requests take the free slots (first come, first served); their prompts are prefilled together, in a
call that all others wait for; then every sequence takes one round of the same gamma. A finished sequence leaves its
slot at once (iteration-level scheduling, Orca, Yu et al., OSDI 2022). Tokens reach their reader when their round ends.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul

import numpy as np

from specdec.cost_model import SimulatedCost


@dataclass(frozen=True)
class ServedText:
    """A recorded text, as a server has to write it."""

    prompt_tokens: int  # tokens of the prompt; all but the last are prefilled
    # For every token of the output the most tokens that a round which starts there commits, the target's own included
    # (theory.md 4.7), so that such a round with gamma draft tokens commits min(length, gamma + 1).
    lengths: tuple[int, ...]
    # By gamma, the lengths of rounds that draft so many tokens, where shorter drafts are not beginnings of longer ones;
    # gammas that are missing have `lengths`.
    by_gamma: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or not self.lengths or min(self.lengths) < 1:
            raise ValueError("a served text needs a prompt, and a length of at least 1 for each of its tokens")

    @property
    def tokens(self) -> int:
        return len(self.lengths)

    def committed(self, position: int, gamma: int) -> int:
        """Return the tokens that a round from `position` with `gamma` draft tokens commits, at most those left."""
        return min(self.of(gamma)[position], gamma + 1, len(self.lengths) - position)

    def of(self, gamma: int) -> tuple[int, ...]:
        """Return the lengths of rounds that draft `gamma` tokens."""
        return self.by_gamma.get(gamma, self.lengths)

    def rounds(self, gamma: int) -> int:
        """Return the rounds that the text takes with drafts of `gamma` tokens."""
        position = rounds = 0
        while position < len(self.lengths):
            position += self.committed(position, gamma)
            rounds += 1
        return rounds


@dataclass(frozen=True)
class Arrival:
    """A request: the second at which it arrives, and its text."""

    at: float
    text: ServedText


def arriving(rate: float, texts: Sequence[ServedText], seed: int, times: Sequence[float] = ()) -> Iterator[Arrival]:
    """Yield arrivals without end, on average `rate` per second, each with one of `texts`, drawn with replacement:
    Poisson, or with the gaps of recorded `times` (seconds, ascending, at least two that differ), again and again,
    scaled to the rate. Rates share their random numbers: at twice the rate the same requests arrive in half the time.
    """
    dice, drawn = (np.random.default_rng([seed, stream]) for stream in (0, 1))
    recorded, at = np.diff(np.asarray(times, dtype=float)), 0.0
    while True:
        gaps = recorded / recorded.mean() if len(recorded) else dice.standard_exponential(256)
        for gap, place in zip(gaps.tolist(), drawn.integers(len(texts), size=len(gaps)).tolist(), strict=True):
            at += gap / rate
            yield Arrival(at, texts[place])


def drawn_texts(
    count: int, alpha: float, prompt_tokens: int, output_tokens: int, deepest: int, seed: int
) -> tuple[ServedText, ...]:
    """Draw texts from a stated law: geometric output lengths, and draft tokens that agree with chance alpha by
    position, independently (Leviathan et al., 2211.17192, section 3.1). Every prompt has `prompt_tokens`, an output
    `output_tokens` on average, and no draft is longer than `deepest`.
    """
    random = np.random.default_rng([seed, 2])
    texts = []
    for size in random.geometric(1 / output_tokens, count).tolist():
        places = np.arange(size + deepest)
        differs = np.where(random.random(len(places)) < alpha, len(places), places)
        ahead = np.minimum.accumulate(differs[::-1])[::-1] - places  # tokens that agree from there on
        texts.append(ServedText(prompt_tokens, tuple((1 + ahead[:size].clip(max=deepest)).tolist())))
    return tuple(texts)


@dataclass(frozen=True)
class StepSeconds:
    """The seconds of everything that a server does, by a cost model (theory.md 7.4): t(B, gamma) = draft + call on
    B (gamma + 1) tokens + overhead; or steps as they were `measured` for some batches at some gammas: between two
    batches on a straight line, below the smallest its seconds, beyond the largest by its own share of a sequence.
    """

    cost: SimulatedCost  # of calls, drafts and overhead of one sequence
    model_drafts: bool  # a model drafts, charged `cost.draft`; otherwise a look-up, charged as a share of the call
    # Share of the draft of one sequence that every further one adds: 0 where one call drafts for all, 1 where each
    # sequence is drafted for in turn.
    draft_growth: float
    overhead_growth: float  # the same of the overhead
    # by gamma, batches, ascending, and the mean seconds of their steps
    measured: Mapping[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)

    def prefill(self, prompts: int, tokens: int) -> float:
        """Return the seconds of one prefill of several prompts, whose tokens to prefill are `tokens` together."""
        return float(self.cost.seconds(tokens, 0, max(1, prompts))) if tokens else 0.0

    def step(self, batch: int, gamma: int, cached: float) -> float:
        """Return the seconds of a round (draft, verify, accept, commit) of `batch` sequences, with `gamma` draft tokens
        each, 0 for no drafts, and `cached` tokens in the cache together.
        """
        if self.measured:
            batches, seconds = self.measured[gamma]
            if batch > batches[-1]:
                return float(seconds[-1] * batch / batches[-1])
            return float(np.interp(batch, batches, seconds))
        cost, context = self.cost, cached / batch
        tokens = batch * (gamma + 1)
        reading = cost.weights_s + cost.cached_s * cached
        if cost.experts:
            reading += float(cost.expert_seconds(tokens))
        computed = -(-tokens // cost.tile) * cost.tile
        computing = computed * (cost.row_s + cost.key_s * (context + computed / batch))
        # SimulatedCost.seconds, whose contexts are whole tokens, in plain floats: millions of steps are taken.
        call = cost.fixed_s + cost.token_s * context
        call += max(reading, computing) if cost.overlap else reading + computing
        draft = 0.0
        if gamma and self.model_drafts:
            draft = cost.draft.fixed_s + cost.draft.step_s * gamma + cost.draft.cached_s * context
            draft *= 1 + self.draft_growth * (batch - 1)
        elif gamma:
            draft = cost.lookup_s * (1 + self.draft_growth * (batch - 1)) + cost.lookup_share * call
        return call + draft + cost.overhead_s * (1 + self.overhead_growth * (batch - 1))


class Policy(ABC):
    """Chooses one gamma for all sequences of a step. Made anew for each simulation, because it may learn."""

    name: str  # in tables and figures

    @abstractmethod
    def gamma(self, batch: int, cached: float) -> int:
        """Return the draft tokens of each of `batch` sequences, which have `cached` tokens in the cache together."""

    def saw(self, gamma: int, committed: Sequence[int], left: Sequence[int]) -> None:
        """Take note of a step: the tokens that each sequence committed, of those that it had left."""


class FixedGamma(Policy):
    """Always the same gamma; 0 is a server without speculation."""

    def __init__(self, gamma: int) -> None:
        self._gamma = gamma
        self.name = f"gamma {gamma}" if gamma else "none"

    def gamma(self, batch: int, cached: float) -> int:
        return self._gamma


class AdaptiveGamma(Policy):
    """The gamma whose step is expected to commit most tokens per second, for the present batch and cache:

        gamma = argmax over g of B tau(g) / t(B, g),   tau(g) = 1 + sum over k <= g of a_1 ... a_k

    This is the rule of SmartSpec (2406.14066), which calls the ratio goodput, with one gamma for all sequences, and
    with a chance a_k for each depth in place of one alpha, since heads are right less often further on. a_k is the
    share of passed draft tokens among those that were tested at depth k, older rounds counting less and less.

    Depths that were not tested lately keep their last estimate. So that a server which has stopped to speculate can
    find out that drafts have become good, every `probe_every`-th step in a row without drafts takes the smallest gamma.
    """

    name = "adaptive"
    prior, prior_rounds = 0.7, 20.0  # the first estimate of every a_k, and how many rounds it counts for
    memory_rounds = 2000.0  # tests of a depth after which an observation of it counts 1/e
    probe_every = 100

    def __init__(self, gammas: Sequence[int], seconds: StepSeconds) -> None:
        self._seconds, self._gammas = seconds, sorted(gammas)
        deepest = self._gammas[-1]
        self._tested = [self.prior_rounds] * deepest
        self._passed = [self.prior * self.prior_rounds] * deepest
        self._without = 0

    def gamma(self, batch: int, cached: float) -> int:
        tokens = list(accumulate([1.0, *accumulate(self.acceptance, mul)]))  # tau(0), tau(1), ...
        best = max((0, *self._gammas), key=lambda gamma: tokens[gamma] / self._seconds.step(batch, gamma, cached))
        self._without = 0 if best else self._without + 1
        if self._without >= self.probe_every:
            best, self._without = self._gammas[0], 0
        return best

    def saw(self, gamma: int, committed: Sequence[int], left: Sequence[int]) -> None:
        for depth in range(gamma):
            # A text that ends within the draft tells nothing about the depths beyond its end.
            told = [each for each, rest in zip(committed, left, strict=True) if each > depth < rest - 1]
            tested, passed = len(told), sum(each > depth + 1 for each in told)
            keep = max(0.0, 1 - tested / self.memory_rounds)
            self._tested[depth] = keep * self._tested[depth] + tested
            self._passed[depth] = keep * self._passed[depth] + passed

    @property
    def acceptance(self) -> list[float]:
        """The present estimates a_1, a_2, ..."""
        return [passed / tested for passed, tested in zip(self._passed, self._tested, strict=True)]


@dataclass(slots=True)
class ServedRequest:
    """One request on its way. Times are simulated seconds; None until they come."""

    number: int  # in the order of arrival, from 0
    text: ServedText
    arrived: float  # when it joined the queue
    admitted: float | None = None  # when it left the queue for a slot
    prefilled: float | None = None  # its prompt was evaluated, and its first round began
    first: float | None = None  # its first tokens were there
    finished: float | None = None  # its last token was there
    position: int = 0  # tokens committed so far
    rounds: int = 0  # rounds taken so far

    @property
    def cached(self) -> int:
        """Tokens in the cache: all but the last, which the next round evaluates."""
        return self.text.prompt_tokens - 1 + self.position


@dataclass(frozen=True, slots=True)
class ServedStep:
    """One round of the whole batch: when it began, its seconds, sequences, gamma, and the tokens committed."""

    start: float
    seconds: float
    batch: int
    gamma: int
    tokens: int


@dataclass
class Served:
    """The history of a simulation."""

    requests: list[ServedRequest] = field(default_factory=list)  # by arrival; the last ones may not have finished
    steps: list[ServedStep] = field(default_factory=list)  # all steps; prefills are between them
    ended: float = 0.0  # the second at which the simulation stopped
    # The integral over time of the number of requests in the system, queue included, counted event by event and not
    # from the times of requests, so that Little's law can be checked.
    area: float = 0.0
    prefill_s: float = 0.0  # seconds spent on prefills

    @property
    def sojourn_s(self) -> float:
        """The sum over requests of the seconds in the system up to the end; Little's law says that it is `area`."""
        return sum((self.ended if each.finished is None else each.finished) - each.arrived for each in self.requests)


def serve(
    arrivals: Iterator[Arrival], policy: Policy, seconds: StepSeconds, slots: int, count: int | None = None
) -> Served:
    """Simulate a server with batches of at most `slots` sequences until its first `count` requests have finished, while
    later arrivals go on loading it; None: until all have finished, where there are finitely many.
    """
    if count is None:
        expected = list(arrivals)
        arrivals, count = iter(expected), len(expected)
    served, now, coming = Served(), 0.0, next(arrivals, None)
    queue: deque[ServedRequest] = deque()
    active: list[ServedRequest] = []
    present, changed = 0, 0.0  # requests in the system, and since when so many

    def count_present(at: float, change: int) -> None:
        """Add the area up to some second, then change the number of requests in the system."""
        nonlocal present, changed
        served.area += present * (at - changed)
        present, changed = present + change, at

    def arrive(until: float) -> None:
        nonlocal coming
        while coming is not None and coming.at <= until:
            request = ServedRequest(len(served.requests), coming.text, coming.at)
            served.requests.append(request)
            queue.append(request)
            count_present(coming.at, 1)
            coming = next(arrivals, None)

    waiting_for = count  # requests that have not finished
    while waiting_for:
        if not active and not queue and coming is not None:
            now = max(now, coming.at)  # an idle server waits
        arrive(now)
        if queue and len(active) < slots:
            admitted = [queue.popleft() for _ in range(min(slots - len(active), len(queue)))]  # that waited longest
            active += admitted
            tokens = sum(each.text.prompt_tokens - 1 for each in admitted)
            duration = seconds.prefill(len(admitted), tokens)
            served.prefill_s += duration
            for each in admitted:
                each.admitted, each.prefilled = now, now + duration
            now += duration
        cached = sum(each.cached for each in active)
        gamma = policy.gamma(len(active), cached)
        duration = seconds.step(len(active), gamma, cached)
        start, now = now, now + duration
        committed, left = list[int](), list[int]()
        for each in active:  # plainly, because this is where a simulation spends its time
            lengths, position = each.text.of(gamma), each.position
            rest = len(lengths) - position
            tokens = min(lengths[position], gamma + 1, rest)  # ServedText.committed
            left.append(rest)
            committed.append(tokens)
            each.position = position + tokens
            each.rounds += 1
            if each.first is None:
                each.first = now
            if tokens == rest:
                each.finished = now
        policy.saw(gamma, committed, left)
        served.steps.append(ServedStep(start, duration, len(active), gamma, sum(committed)))
        if finished := [each for each in active if each.finished is not None]:
            arrive(now)
            count_present(now, -len(finished))
            active = [each for each in active if each.finished is None]
            waiting_for -= sum(each.number < count for each in finished)
    arrive(now)
    count_present(now, 0)
    served.ended = now
    return served
