"""Times cases in turn, pass after pass, until there are enough or the time is up."""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from math import inf, isnan, nan
from statistics import median
from typing import TypeVar

import torch

from specdec import ranks
from specdec.clock import Clock
from specdec.disturbance import disturbed
from specdec.progress import stage

Case = TypeVar("Case", bound=Hashable)
Result = TypeVar("Result")


@dataclass
class Timer:
    """Passes over cases, each in an order of its own, and their times. What other work disturbed is timed again, in up
    to twice as many passes, until every case has as many undisturbed times as were asked for; a disturbed one counts as
    the median of the case's others, so that times of one pass stand side by side.
    """

    clock: Clock
    calls: int  # passes that are asked for; every case is timed once in each
    generator: torch.Generator  # of whatever tokens are drawn
    limit: float = inf  # seconds after which no new pass begins; the first one is always made
    heartbeat: Callable[[], None] = lambda: None  # to be called now and then, so that a long series is seen to be alive
    done: int = field(default=0, init=False)  # passes that were made

    def __post_init__(self) -> None:
        self._warm_up = 0
        self._dice = random.Random(self.generator.initial_seed())
        # Readings before and after each action of a case, and the seconds of it that were lost.
        self._times: defaultdict[Hashable, list[tuple[object, object, float]]] = defaultdict(list)

    def passes(self, warm_up: int = 0, name: str = "") -> Iterator[int]:
        """Yield the number of each pass, from 0; the first times of every case, `warm_up` of them, are not counted. The
        passes are shown as a stage of this `name`; "" where another one is under way.
        """
        self._warm_up = warm_up
        begin, passes = time.perf_counter(), self.calls + warm_up
        with stage(name, total=passes, told=False) if name else nullcontext() as under_way:
            # Every rank makes the passes of rank 0, whose clock and whose neighbours are not theirs.
            while ranks.given(self.done == 0 or (time.perf_counter() - begin < self.limit and self._lacking(passes))):
                yield self.done
                self.clock.synchronize()
                self.done += 1
                if under_way is not None:
                    under_way.total = max(passes, self.done + self._lacking(passes))
                    under_way.advance()

    def _lacking(self, passes: int) -> bool:
        """Return True while passes are left, or another may give a case an undisturbed time that it lacks."""
        hits = ([hit for _, hit in self._timed(case)] for case in self._times)
        lacking = (sum(hit) > len(hit) - self.calls for hit in hits if any(hit))
        return self.done < passes or (self.done < passes + self.calls and any(lacking))

    @property
    def disturbed(self) -> int:
        """The number of cases that were never timed undisturbed."""
        return sum(all(hit for _, hit in timed) for timed in map(self._timed, self._times) if timed)

    def _timed(self, case: Hashable) -> list[tuple[float, bool]]:
        """Return the times of a case, each with True where it was disturbed; the device must be synchronised."""
        times = self._times.get(case, [])[self._warm_up :]
        seconds = ((self.clock.seconds(start, end), waited) for start, end, waited in times)
        return [(each, disturbed(waited, each)) for each, waited in seconds]

    def shuffled(self, cases: Sequence[Case]) -> list[Case]:
        return self._dice.sample(cases, len(cases))

    def time(self, case: Hashable, action: Callable[[], Result]) -> Result:
        """Do `action` and keep its time under `case`."""
        before, start = self.clock.watch.read(), self.clock.mark()
        result = action()
        end, after = self.clock.mark(), self.clock.watch.read()
        self._times[case].append((start, end, self.clock.watch.waited(before, after)))
        return result

    def forget(self, case: Hashable) -> None:
        """Drop the last time of a case: it did not do what was to be timed."""
        self._times[case].pop()

    def seconds(self, case: Hashable) -> list[float]:
        """Return the times of a case, in order, for disturbed ones the median of the others; empty if it has none."""
        self.clock.synchronize()
        timed = self._timed(case)
        usual = median([each for each, hit in timed if not hit] or [nan])
        return [usual if hit and not isnan(usual) else each for each, hit in timed]
