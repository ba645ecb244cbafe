"""Prompt bootstrap of ratios of sums (THEORY 6): rounds of one prompt are dependent, prompts are not.

Prompts are resampled with replacement; every statistic is recomputed from the resampled sums, all of them in
the same replicates, so differences and products of statistics keep their dependence.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite, nan

import numpy as np
import pandas as pd

Columns = Mapping[str, np.ndarray]  # sums by column name: scalars for the data, [B] for the replicates
Statistic = Callable[[Columns], Mapping[str, np.ndarray]]

CHUNK = 2_000_000  # resampled prompt indices held at once
MOST_UNDEFINED = 0.05  # share of replicates without a value (0 / 0) beyond which there is no interval


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval; the bounds are NaN where the data cannot give any.

    This is the project's one interval, and formatting it is the one way to print it: `f"{interval:.3f}"` gives
    "1.300 (1.184 to 1.441)", or "1.300" where there are no bounds. Any number format will do (`+.2f`, `.0%`, `,.1f`);
    an empty one means `.3f`. An estimate that is not finite prints as "–".

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
        value, low, high = (metrics.get(f"{name}{end}") for end in ("", ".ci_low", ".ci_high"))
        estimate, below, above = (nan if number is None else float(number) for number in (value, low, high))
        return cls(estimate, below, above)

    @property
    def known(self) -> bool:
        """True where both bounds are finite."""
        return isfinite(self.low) and isfinite(self.high)

    def __format__(self, form: str) -> str:
        if not isfinite(self.estimate):
            return "–"
        form = form or ".3f"
        shown = format(self.estimate, form)
        return f"{shown} ({self.low:{form}} to {self.high:{form}})" if self.known else shown


def resampled_sums(sums: np.ndarray, replicates: int, seed: int) -> np.ndarray:
    """[B, C] sums over P prompts drawn with replacement from `sums` [P, C]: multinomial weights times the
    matrix.
    """
    prompts = len(sums)
    generator = np.random.default_rng(seed)
    block = max(1, CHUNK // prompts)
    parts = []
    for start in range(0, replicates, block):
        rows = min(block, replicates - start)
        drawn = generator.integers(prompts, size=(rows, prompts)) + prompts * np.arange(rows)[:, None]
        weights = np.bincount(drawn.ravel(), minlength=rows * prompts).reshape(rows, prompts)
        parts.append(weights.astype(float) @ sums)
    return np.concatenate(parts)


def bootstrap(
    table: pd.DataFrame, statistic: Statistic, replicates: int = 10_000, seed: int = 0, level: float = 0.95
) -> dict[str, Interval]:
    """Estimates and percentile intervals of `statistic`, a function from column sums to named values.

    `table` has one row per prompt. One prompt gives estimates without an interval. Replicates in which a
    value is not finite are left out of its interval; if they are more than 5%, it has none. ValueError for an
    empty table, sums that are not finite, no replicates, or a level outside (0, 1).
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
    return {
        name: Interval(float(estimate), *percentile_bounds(values[name], level), level, len(sums))
        for name, estimate in estimates.items()
    }


def percentile_bounds(values: np.ndarray, level: float) -> tuple[float, float]:
    """The two percentiles that enclose `level` of the finite replicates; NaN if too many are not finite."""
    finite = values[np.isfinite(values)]
    if len(finite) < (1 - MOST_UNDEFINED) * len(values):
        return nan, nan
    low, high = np.quantile(finite, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
