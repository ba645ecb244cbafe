"""The event loop of a simulated server with continuous batching.

Between two steps the oldest waiting requests take the free slots (first come, first served); their prompts are
prefilled together, in a call that all others wait for; then every sequence takes one round of the same gamma. A
finished sequence leaves its slot at once (iteration-level scheduling, Orca, Yu et al., OSDI 2022). Tokens reach their
reader when their round ends. Knows no laws, files or statistics.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from specdec.serving.arrivals import Arrival, ServedText
from specdec.serving.policies import Policy
from specdec.serving.step_seconds import StepSeconds


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

    # In the order of arrival; those that came last may not have finished.
    requests: list[ServedRequest] = field(default_factory=list)
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
    """Simulate a server until its first `count` requests have finished, or all where there are finitely many.

    Args:
        slots: the most sequences in a batch.
        count: later arrivals go on loading the server but need not finish; None: as many as arrive.
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
        committed, left = _commit(active, gamma, now + duration)
        policy.saw(gamma, committed, left)
        served.steps.append(ServedStep(now, duration, len(active), gamma, sum(committed)))
        now += duration
        if finished := [each for each in active if each.finished is not None]:
            arrive(now)
            count_present(now, -len(finished))
            active = [each for each in active if each.finished is None]
            waiting_for -= sum(each.number < count for each in finished)
    arrive(now)
    count_present(now, 0)
    served.ended = now
    return served


def _commit(active: list[ServedRequest], gamma: int, now: float) -> tuple[list[int], list[int]]:
    """End a round of all sequences; return the tokens that each committed, and those that it had left."""
    left: list[int] = []
    committed: list[int] = []
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
    return committed, left
