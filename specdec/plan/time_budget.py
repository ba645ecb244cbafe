"""The wall-clock time of a run: the seconds that it may take until its last prompt is decoded, and where they went.
When time runs short whole prompts are left out, for every method alike. Which ones follows from the run's seed, and
from how many there was time for; never from what a prompt costs.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from specdec.analysis.sections import counted

LEAST = 5  # prompts that are decoded in any case: intervals of fewer say nothing


class TimeBudget:
    """The time of one run, since its command began, a reading of `now`, or since this was made."""

    def __init__(
        self, seconds: float | None, now: Callable[[], float] = time.monotonic, since: float | None = None
    ) -> None:
        self.seconds = seconds  # until the last prompt is decoded; None without a bound
        self.left_out: list[str] = []  # prompts that there was no time for, in their order; once for each repeat
        self._now, self._begun = now, now() if since is None else since
        self._last_lap = self._begun
        self._begun_prompts = 0
        self._took: list[float] = []  # seconds of each prompt that was decoded now
        self._stages: dict[str, float] = {}

    @property
    def gone(self) -> float:
        """Seconds since the run began."""
        return self._now() - self._begun

    def lap(self, stage: str) -> None:
        """Put the time since the last call down to a stage of the run."""
        now = self._now()
        self._stages[stage] = self._stages.get(stage, 0.0) + now - self._last_lap
        self._last_lap = now

    @property
    def stages(self) -> str:
        """The seconds of all stages, in words."""
        parts = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in self._stages.items())
        return f"Seconds by stage: {parts}."

    def expectation(self, left: int) -> str:
        """Return in a sentence how many more prompts there will be time for, once the first one is decoded; "" before
        and afterwards, and without a bound; `left` are still to be decoded.
        """
        if self.seconds is None or len(self._took) != 1 or not left:
            return ""
        fit = self.fitting(left)
        many = f"all {left} others" if fit == left else f"about {fit} of the {left} others"
        return (
            f"Time budget: {self.gone:.0f} of {self.seconds:g} s are gone, with a first prompt of {self._usual:.1f} s; "
            f"{many} are expected to fit."
        )

    def fitting(self, left: int) -> int:
        """Return how many of `left` more prompts there will be time for, if they take what the others took."""
        if self.seconds is None or not self._usual:
            return left
        return min(left, max(0, LEAST - self._begun_prompts, int((self.seconds - self.gone) / self._usual)))

    @property
    def _usual(self) -> float:
        """Mean seconds of the prompts that were decoded now; 0 before the first one."""
        return sum(self._took) / len(self._took) if self._took else 0.0

    @contextmanager
    def decoding(self, turns: Sequence[str], kept: bool) -> Iterator[bool]:
        """Tell if a prompt, by the ids of all its turns, is to be decoded, and take its time; once there was no time
        for one there is none for later ones. What an earlier sitting has decoded, also in part, is `kept` in any case.
        """
        spent = self.seconds is not None and self._begun_prompts >= LEAST and self.gone + self._usual > self.seconds
        if not kept and (self.left_out or spent):
            self.left_out += turns
            yield False
            return
        self._begun_prompts += 1
        begin = self._now()
        yield True
        if not kept:
            self._took.append(self._now() - begin)

    def cut(self, prompts: int) -> str:
        """Return in a sentence how many of a run's prompts were decoded; "" where all were."""
        if not self.left_out:
            return ""
        return (
            f"{prompts - len(self.left_out)} of {counted(prompts, 'prompt')} were decoded, in an order drawn by the "
            f"seed, because the time budget of {self.seconds:g} s was spent (measurement.budget_seconds; null: no "
            "bound)."
        )
