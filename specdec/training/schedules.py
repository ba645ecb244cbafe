"""Schedules of a training of heads, as functions of the step alone: learning rates and the losses' weights."""

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from specdec.config import Probability, typed
from specdec.training.recipe_parts import NonNegative


@typed
class Ramp:
    """A weight that is 0 before `start`, then runs straight from `first` to `last`, reached at `end` and kept.

    Attributes:
        start, end: shares of the training's steps.
    """

    first: NonNegative
    last: NonNegative
    start: Probability
    end: Probability

    @model_validator(mode="after")
    def _in_order(self) -> "Ramp":
        if self.end < self.start:
            raise ValueError(f"a weight cannot end its way at {self.end} before it starts at {self.start}")
        return self

    def at(self, step: int, steps: int) -> float:
        """Return the weight at step 0..steps-1."""
        begin, end = self.start * steps, self.end * steps
        if step < begin:
            return 0.0
        done = 1.0 if step >= end else (step - begin) / (end - begin)
        return self.first + (self.last - self.first) * done

    def first_step(self, steps: int) -> int | None:
        """Return the first step at which the weight is above 0; None if there is none."""
        return next((step for step in range(steps) if self.at(step, steps) > 0), None)


def _constant(value: Any) -> Any:
    """Turn a plain number into a weight that never changes."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"first": value, "last": value, "start": 0.0, "end": 0.0} if number else value


Weight = Annotated[Ramp, BeforeValidator(_constant)]


@typed
class RateConfig:
    """The course of the learning rate over a training.

    Attributes:
        schedule: after the warm-up; cosine falls to 0 over all other steps, trapezoid in a line over `decay_share`.
        warmup_steps: steps in which the rate grows linearly from 0; a backbone that starts later warms up from its own
            first step on.
        decay_share: the share of the steps, at the end, in which a trapezoid falls.
    """

    schedule: Literal["cosine", "constant", "trapezoid"]
    warmup_steps: Annotated[int, Field(ge=0)]
    decay_share: Probability


def warm_up(step: int, warmup_steps: int) -> float:
    """Return the factor on the learning rate after `step` steps of warming up."""
    return min(1.0, (step + 1) / (warmup_steps + 1))


def rate_factor(step: int, steps: int, config: RateConfig) -> float:
    """Return the factor on every learning rate at step 0..steps-1."""
    if step < config.warmup_steps:
        return warm_up(step, config.warmup_steps)
    if config.schedule == "cosine":
        rest = max(steps - config.warmup_steps, 1)
        return 0.5 * (1.0 + math.cos(math.pi * (step - config.warmup_steps) / rest))
    if config.schedule == "trapezoid":
        return min(1.0, (steps - step) / max(config.decay_share * steps, 1.0))
    return 1.0
