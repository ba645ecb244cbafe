"""The wall-clock time of a run: the seconds that it may take until its last prompt is decoded, and where they went.

When time runs short whole prompts are left out, for every method alike. Which ones follows from the run's seed, and
from how many there was time for; never from what a prompt costs.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cache
from typing import Any

from specdec.analysis.findings import counted
from specdec.config import RunConfig, config_dir
from specdec.errors import UsageError
from specdec.tracking.writer import PARENT_RUN

FIRST_LOOK_S = 90.0  # budget of the command in the README: with its start and its report it then takes two minutes
LEAST = 5  # prompts that are decoded in any case: intervals of fewer say nothing
KEY = "measurement.budget_seconds"


class TimeBudget:
    """The time of one run, from the moment when this is made.

    Attributes:
        seconds: time until the last prompt is decoded; None without a bound.
        left_out: ids of the prompts that there was no time for, in their order; once for each repeat.
    """

    def __init__(self, seconds: float | None, now: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            now: returns seconds.
        """
        self.seconds = seconds
        self.left_out: list[str] = []
        self._now, self._begun, self._last_lap = now, now(), now()
        self._begun_prompts = 0
        self._took: list[float] = []  # seconds of each prompt that was decoded now
        self._stages: dict[str, float] = {}

    @property
    def bound(self) -> bool:
        """True if there is a bound."""
        return self.seconds is not None

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
        and afterwards, and without a bound.

        Args:
            left: prompts that are still to be decoded.
        """
        if self.seconds is None or len(self._took) != 1 or not left:
            return ""
        took = self._took[0]
        fit = left if took == 0 else max(LEAST - self._begun_prompts, int((self.seconds - self.gone) / took))
        many = f"all {left} others" if fit >= left else f"about {max(fit, 0)} of the {left} others"
        return (
            f"Time budget: {self.gone:.0f} of {self.seconds:g} s are gone, with a first prompt of {took:.1f} s; {many} "
            "are expected to fit."
        )

    @contextmanager
    def decoding(self, turns: Sequence[str], kept: bool) -> Iterator[bool]:
        """Tell if a prompt is to be decoded, and take its time. Once there was no time for one there is none for any
        later one.

        Args:
            turns: ids of the prompt and of its later turns.
            kept: an earlier sitting of the run has decoded it, or a part of it: it is never left out.
        """
        if not kept and not self._time_for_another():
            self.left_out += turns
            yield False
            return
        self._begun_prompts += 1
        begin = self._now()
        yield True
        if not kept:
            self._took.append(self._now() - begin)

    def _time_for_another(self) -> bool:
        if self.seconds is None:
            return True
        if self.left_out:
            return False
        if self._begun_prompts < LEAST:
            return True
        usual = sum(self._took) / len(self._took) if self._took else 0.0
        return self.gone + usual <= self.seconds

    def cut(self, prompts: int) -> str:
        """Return in a sentence how many of a run's prompts were decoded; "" where all were."""
        if not self.left_out:
            return ""
        return (
            f"{prompts - len(self.left_out)} of {counted(prompts, 'prompt')} were decoded, in an order drawn by the "
            f"seed, because the time budget of {self.seconds:g} s was spent ({KEY}; null: no bound)."
        )


def budget_of(config: RunConfig) -> float | None:
    """Return the seconds that a run may take until its last prompt is decoded; None without a bound.

    `auto` is a bound on the command of the README alone, the first look of somebody who waits for it: on the default
    target, prompts and measurement, with any drafter. Whoever sets a value of these has work of their own, which is not
    cut short unasked, and so have the cells of a sweep and the files of `conf/experiment`.

    Raises:
        UsageError: a bound on what several processes or several sequences at once decode.
    """
    asked = config.measurement.budget_seconds
    if asked == "auto":
        return FIRST_LOOK_S if _is_first_look(config) else None
    if asked is not None:
        _check(config, asked)
    return asked


def refuse_budget(config: RunConfig, who: str) -> None:
    """Refuse a bound on the time of what does not decode prompts one by one.

    Args:
        who: subject of the sentence.
    Raises:
        UsageError: `measurement.budget_seconds` is a number.
    """
    asked = config.measurement.budget_seconds
    if isinstance(asked, float):
        raise UsageError(f"Bad value {KEY}={asked:g}: {who} leaves no prompt out; use {KEY}=null.")


def refuse_null(config: RunConfig, who: str) -> None:
    """Refuse the null control of what does not set one speedup against plain decoding.

    Args:
        who: subject of the sentence.
    Raises:
        UsageError: `measurement.null` is true.
    """
    if config.measurement.null is True:
        raise UsageError(f"Bad value measurement.null=true: {who} has no null control; use measurement.null=auto.")


def _check(config: RunConfig, asked: float) -> None:
    measurement = config.measurement
    for wrong, fault, instead in (
        (
            (measurement.workers or 1) > 1,
            f"the {measurement.workers} workers begin prompts side by side",
            "measurement.workers=null",
        ),
        (
            measurement.batch_size > 1,
            f"a batch decodes {measurement.batch_size} prompts at once",
            "measurement.batch_size=1",
        ),
        (
            config.target.get("tensor_parallel", 1) != 1,
            "processes that share the weights have to decode the same prompts, and each has its own clock",
            "target.tensor_parallel=1",
        ),
    ):
        if wrong:
            raise UsageError(
                f"Bad value {KEY}={asked:g}: prompts are left out one by one, and {fault}; use {instead}, or "
                f"{KEY}=null."
            )


@cache  # to compose it takes longer than all else that happens before the parts are loaded
def _without_arguments(searched: tuple[str, ...]) -> Any:
    """Return the configuration that Hydra composes of no arguments, of the folders of its search path.

    Args:
        searched: these folders; none where no command of Hydra runs, and our own is meant.
    """
    from hydra import compose, initialize_config_dir

    if searched:
        return compose("config")
    with initialize_config_dir(config_dir(), version_base="1.3"):
        return compose("config")


def _is_first_look(config: RunConfig) -> bool:
    if config.experiment_name is not None or config.study is not None or os.environ.get(PARENT_RUN):
        return False
    from hydra.core.global_hydra import GlobalHydra
    from omegaconf import OmegaConf

    hydra = GlobalHydra.instance()
    searched = hydra.config_loader().get_search_path().get_path() if hydra.is_initialized() else []
    composed = _without_arguments(tuple(str(each.path) for each in searched))
    asked = asdict(config)
    return all(
        asked[group] == OmegaConf.to_container(composed[group], resolve=True)
        for group in ("target", "prompts", "measurement")
    )
