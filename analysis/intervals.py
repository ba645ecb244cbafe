"""The project's one interval, and the prompt bootstrap that makes most of them.

Rounds of one prompt are dependent, prompts are not: so prompts are resampled with replacement, and every statistic is
recomputed from the sums over the resampled prompts. All statistics share their replicates, so that differences and
products of statistics keep their dependence. The percentiles of few prompts lie too close together; they are moved
apart until intervals hold from 3 prompts on (`bootstrap_bounds`), and below `FEWEST` prompts no verdict is given.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite, isnan, nan, sqrt

import numpy as np
import pandas as pd
from scipy.special import ndtri, stdtrit

Columns = Mapping[str, np.ndarray]  # sums by column name: scalars for the data, [B] for the replicates
Statistic = Callable[[Columns], Mapping[str, np.ndarray]]

CHUNK = 2_000_000  # resampled prompt indices held at once
KEPT = 15_000_000  # draws that are kept for the next statistic, 2 bytes each
FEWEST = 5  # prompts that a verdict needs: fewer say little of others, however well their interval is made
ENDS = ("", ".ci_low", ".ci_high")  # of the names of a metric and its bounds
MOST_UNDEFINED = 0.05  # share of replicates without a value (0 / 0) beyond which there is no interval


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval; the bounds are NaN where the data cannot give any.

    Formatting is the one way to print it: `f"{interval:.3f}"` gives "1.300 (1.184 to 1.441)", "1.300" where there are
    no bounds, and "–" where there is no estimate. Any number format will do (`+.2f`, `.0%`, `,.1f`); an empty one means
    `.3f`.

    Attributes:
        level: coverage that the interval aims at.
        prompts: prompts that it rests on.
    """

    estimate: float
    low: float = nan
    high: float = nan
    level: float = 0.95
    prompts: int = 0

    @classmethod
    def from_metrics(cls, metrics: Mapping[str, float], name: str) -> "Interval":
        """Return metric `name` with its bounds `name.ci_low` and `name.ci_high`, NaN for what is missing."""
        value, low, high = (float(metrics.get(f"{name}{end}", nan)) for end in ENDS)
        return cls(value, low, high)

    def as_metrics(self, name: str) -> dict[str, float]:
        """Return the value and its bounds under the names that `from_metrics` reads."""
        return {f"{name}{end}": value for end, value in zip(ENDS, (self.estimate, self.low, self.high), strict=True)}

    @property
    def known(self) -> bool:
        """True where both bounds are finite."""
        return isfinite(self.low) and isfinite(self.high)

    @property
    def side(self) -> int:
        """1 where the whole interval lies above 0, -1 where it lies below, 0 where neither can be told."""
        return int(self.low > 0) - int(self.high < 0)

    @property
    def bounds(self) -> dict[str, float]:
        """The bounds as the columns `ci_low` and `ci_high` of a table."""
        return {"ci_low": self.low, "ci_high": self.high}

    def contains(self, value: float, slack: float = 1e-9) -> bool | None:
        """Return True if the interval contains `value`, up to rounding by `slack`; None where there is no interval."""
        return self.low <= value + slack and self.high >= value - slack if self.known else None

    def __format__(self, form: str) -> str:
        if isnan(self.estimate):
            return "–"
        form = form or ".3f"
        shown = format(self.estimate, form)
        return f"{shown} ({self.low:{form}} to {self.high:{form}})" if self.known else shown


def too_few(prompts: int) -> str:
    """Return in words why a number of prompts settles nothing; "" where they are enough for a verdict, or not known."""
    if prompts >= FEWEST or prompts < 1:
        return ""
    return f"{prompts} {'prompt is' if prompts == 1 else 'prompts are'} too few for a verdict, which needs {FEWEST}"


def resampled_sums(sums: np.ndarray, replicates: int, seed: int) -> np.ndarray:
    """Return sums [B, C] over P prompts drawn with replacement from `sums` [P, C], for B replicates."""
    prompts = len(sums)
    blocks = _kept_draws if prompts * replicates <= KEPT else _draws
    return np.concatenate([weights.astype(float) @ sums for weights in blocks(prompts, replicates, seed)])


def _draws(prompts: int, replicates: int, seed: int) -> Iterator[np.ndarray]:
    """Yield how often [b, P] each prompt was drawn, for the replicates in blocks of b."""
    generator = np.random.default_rng(seed)
    block = max(1, CHUNK // prompts)
    for start in range(0, replicates, block):
        count = min(block, replicates - start)
        drawn = generator.integers(prompts, size=(count, prompts)) + prompts * np.arange(count)[:, None]
        yield np.bincount(drawn.ravel(), minlength=count * prompts).reshape(count, prompts)


@lru_cache(maxsize=8)
def _kept_draws(prompts: int, replicates: int, seed: int) -> tuple[np.ndarray, ...]:
    """Return the blocks of `_draws`, kept because every statistic of a run has the same replicates."""
    return tuple(weights.astype(np.uint16) for weights in _draws(prompts, replicates, seed))


def bootstrap(
    table: pd.DataFrame,
    statistic: Statistic,
    replicates: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
    shares: Collection[str] = (),
) -> dict[str, Interval]:
    """Return the values of `statistic`, a function from column sums to named values, with their `bootstrap_bounds`.

    `table` has one line per prompt. One prompt gives estimates without an interval. Replicates in which a value is not
    finite are left out of its interval; if they are more than 5%, it has none. `shares` are the values that lie between
    0 and 1 whatever the prompts, and so do their bounds. ValueError for an empty table, sums that are not finite, no
    replicates, or a level outside (0, 1).
    """
    sums = table.to_numpy(dtype=float)
    if len(sums) == 0 or not np.isfinite(sums).all():
        raise ValueError("the bootstrap needs at least one prompt, and finite sums for all of them")
    if replicates < 1 or not 0 < level < 1:
        raise ValueError(f"replicates must be at least 1 and level between 0 and 1, got {replicates} and {level}")
    names = list(table.columns)
    with np.errstate(divide="ignore", invalid="ignore"):
        estimates = statistic(dict(zip(names, sums.sum(axis=0), strict=True)))
        if len(sums) == 1:
            return {name: Interval(float(value), nan, nan, level, 1) for name, value in estimates.items()}
        drawn = resampled_sums(sums, replicates, seed)
        values = statistic(dict(zip(names, drawn.T, strict=True)))
    intervals = {}
    for name, estimate in estimates.items():
        bounds = bootstrap_bounds(float(estimate), values[name], len(sums), level)
        low, high = np.clip(bounds, 0, 1) if name in shares else bounds
        intervals[name] = Interval(float(estimate), float(low), float(high), level, len(sums))
    return intervals


def bootstrap_bounds(estimate: float, values: np.ndarray, prompts: int, level: float = 0.95) -> tuple[float, float]:
    """Return the bounds of an interval that holds for few prompts, too: the percentiles of the replicates [B], each
    moved away from the estimate by the factor `stretch`. Ratios move on the logarithm's scale: a value whose replicates
    are all positive keeps positive bounds.

    NaN for a single prompt, an estimate that is not finite, and where the percentiles are. The coverage at 3 to 100
    prompts is in `analysis/results/few_prompts.json` and `interval_coverage.json`.
    """
    if prompts < 2 or not isfinite(estimate):
        return nan, nan
    low, high = percentile_bounds(values, level)
    if isnan(low):
        return nan, nan
    factor = stretch(prompts, level)
    if estimate > 0 and (values[np.isfinite(values)] > 0).all():
        return estimate * (low / estimate) ** factor, estimate * (high / estimate) ** factor
    return estimate - factor * (estimate - low), estimate + factor * (high - estimate)


def stretch(prompts: int, level: float = 0.95) -> float:
    """Return how much further than a percentile of the prompt bootstrap a bound lies: sqrt(P / (P - 1)), by which the
    spread of P prompts is underestimated, times what Student's t with P - 1 degrees of freedom has over the normal law
    (Hesterberg 1411.5279, who moves to outer percentiles instead, and so never beyond the most extreme prompt).
    """
    inside = (1 + level) / 2
    return sqrt(prompts / (prompts - 1)) * float(stdtrit(prompts - 1, inside) / ndtri(inside))


def percentile_bounds(values: np.ndarray, level: float) -> tuple[float, float]:
    """Return the two percentiles that enclose `level` of the finite replicates; NaN if too many are not finite."""
    finite = values[np.isfinite(values)]
    if len(finite) < (1 - MOST_UNDEFINED) * len(values):
        return nan, nan
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
