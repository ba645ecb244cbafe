"""The event loop of a simulated server with continuous batching, on simpy.

Between two steps the oldest waiting requests take the free slots (first come, first served); their prompts are
prefilled together, in a call that all others wait for; then every sequence takes one round of the same gamma. A
finished sequence leaves its slot at once (iteration-level scheduling, Orca, Yu et al., OSDI 2022). Tokens reach their
reader when their round ends. Knows no laws, files or statistics.
"""

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import simpy

from specdec.serving.arrivals import Arrival, ServedText
from specdec.serving.policies import Policy
from specdec.serving.step_seconds import StepSeconds


@dataclass(slots=True)
class ServedRequest:
    """One request on its way. Times are simulated seconds; None until they come.

    Attributes:
        number: in the order of arrival, from 0.
        arrived, admitted: joined the queue, left it for a slot.
        prefilled: its prompt was evaluated, and its first round began.
        first: its first tokens were there.
        finished: its last token was there.
        position: tokens committed so far.
        rounds: rounds taken so far.
    """

    number: int
    text: ServedText
    arrived: float
    admitted: float | None = None
    prefilled: float | None = None
    first: float | None = None
    finished: float | None = None
    position: int = 0
    rounds: int = 0

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
    """The history of a simulation.

    Attributes:
        requests: all that arrived, in order; those that came last may not have finished.
        steps: all steps; prefills are between them.
        ended: the second at which the simulation stopped.
        area: the integral over time of the number of requests in the system, queue included, counted event by event and
            not from the times of requests, so that Little's law can be checked.
        prefill_s: seconds spent on prefills.
    """

    requests: list[ServedRequest] = field(default_factory=list)
    steps: list[ServedStep] = field(default_factory=list)
    ended: float = 0.0
    area: float = 0.0
    prefill_s: float = 0.0

    @property
    def sojourn_s(self) -> float:
        """The sum over requests of the seconds in the system up to the end; Little's law says that it is `area`."""
        return sum((self.ended if each.finished is None else each.finished) - each.arrived for each in self.requests)


def serve(
    arrivals: Iterator[Arrival], policy: Policy, seconds: StepSeconds, slots: int, count: int | None = None
) -> Served:
    """Simulate a server until its first `count` requests have finished, or all where there are finitely many.

    Args:
        slots: the most sequences in a batch.
        count: later arrivals go on loading the server but need not finish; None: as many as arrive.
    """
    return _Server(arrivals, policy, seconds, slots, count).run()


class _Server:
    def __init__(
        self, arrivals: Iterator[Arrival], policy: Policy, seconds: StepSeconds, slots: int, count: int | None
    ) -> None:
        self._policy, self._seconds, self._slots = policy, seconds, slots
        self._env = simpy.Environment()
        self._queue: deque[ServedRequest] = deque()
        self._active: list[ServedRequest] = []
        self._wake: simpy.Event | None = None  # what an idle server waits for
        self._served = Served()
        self._present, self._changed = 0, 0.0  # requests in the system, and since when so many
        self._open = count  # requests that the simulation still waits for
        if count is None:
            expected = list(arrivals)
            arrivals, self._open = iter(expected), len(expected)
        self._arrivals = arrivals

    def run(self) -> Served:
        if self._open:
            self._env.process(self._arrive())
            self._env.run(until=self._env.process(self._work()))
        self._count_present(0)
        self._served.ended = self._env.now
        return self._served

    def _arrive(self) -> Generator[simpy.Event, Any, None]:
        for number, arrival in enumerate(self._arrivals):
            if arrival.at > self._env.now:
                yield self._env.timeout(arrival.at - self._env.now)
            request = ServedRequest(number, arrival.text, self._env.now)
            self._served.requests.append(request)
            self._queue.append(request)
            self._count_present(1)
            if self._wake is not None and not self._wake.triggered:
                self._wake.succeed()

    def _work(self) -> Generator[simpy.Event, Any, None]:
        waited_for = self._open or 0
        while self._open:
            if not self._active and not self._queue:
                self._wake = self._env.event()
                yield self._wake
                self._wake = None
            if self._queue and len(self._active) < self._slots:
                free = self._slots - len(self._active)  # for those that have waited longest
                admitted = [self._queue.popleft() for _ in islice(range(free), len(self._queue))]
                self._active += admitted
                for each in admitted:
                    each.admitted = self._env.now
                tokens = sum(each.text.prompt_tokens - 1 for each in admitted)
                duration = self._seconds.prefill(len(admitted), tokens)
                self._served.prefill_s += duration
                yield self._env.timeout(duration)
                for each in admitted:
                    each.prefilled = self._env.now
            cached = sum(each.cached for each in self._active)
            gamma = self._policy.gamma(len(self._active), cached)
            start, duration = self._env.now, self._seconds.step(len(self._active), gamma, cached)
            yield self._env.timeout(duration)
            finished = self._commit(start, duration, gamma)
            self._open -= sum(each.number < waited_for for each in finished)

    def _commit(self, start: float, duration: float, gamma: int) -> list[ServedRequest]:
        """End a round of all sequences; return those that finished in it."""
        now, most = self._env.now, gamma + 1
        left: list[int] = []
        committed: list[int] = []
        finished: list[ServedRequest] = []
        for each in self._active:  # plainly, because this is where a simulation spends its time
            lengths, position = each.text.of(gamma), each.position
            rest = len(lengths) - position
            tokens = min(lengths[position], most, rest)  # ServedText.committed
            left.append(rest)
            committed.append(tokens)
            each.position = position + tokens
            each.rounds += 1
            if each.first is None:
                each.first = now
            if tokens == rest:
                finished.append(each)
        self._policy.saw(gamma, committed, left)
        self._served.steps.append(ServedStep(start, duration, len(self._active), gamma, sum(committed)))
        if finished:
            for each in finished:
                each.finished = now
            self._active = [each for each in self._active if each.finished is None]
            self._count_present(-len(finished))
        return finished

    def _count_present(self, change: int) -> None:
        """Add the area up to now, then change the number of requests in the system."""
        self._served.area += self._present * (self._env.now - self._changed)
        self._present, self._changed = self._present + change, self._env.now
