"""The project's one interval, and the prompt bootstrap that makes most of them.

Rounds of one prompt are dependent, prompts are not: so prompts are resampled with replacement, and every statistic is
recomputed from the sums over the resampled prompts. All statistics share their replicates, so that differences and
products of statistics keep their dependence. The percentiles of few prompts lie too close together; they are moved
apart, on a scale on which the quantity has no bounds, so that no interval holds what cannot be. Below `FEWEST` prompts
there is no interval, and so no verdict.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import exp, inf, isfinite, isinf, isnan, log, nan, sqrt

import numpy as np
import pandas as pd
from scipy.special import expit, ndtri, stdtrit

Columns = Mapping[str, np.ndarray]  # sums by column name: scalars for the data, [B] for the replicates
Value = Callable[[Columns], np.ndarray]
Statistic = Callable[[Columns], Mapping[str, np.ndarray]]

LEVEL = 0.95  # coverage that an interval aims at
CHUNK = 2_000_000  # resampled prompt indices held at once
KEPT = 15_000_000  # draws that are kept for the next statistic, 2 bytes each
FEWEST = 5  # prompts that an interval and a verdict need, in every command: see `results/few_prompts.json`
ENDS = ("", ".ci_low", ".ci_high")  # of the names of a metric and its bounds
MOST_UNDEFINED = 0.05  # share of replicates without a value (0 / 0) beyond which there is no interval
ROUNDING = 1e-6  # relative distance beyond an end of a range that is rounding, not a contradiction


@dataclass(frozen=True)
class Range:
    """The values that a quantity can have, whatever the prompts: from `low` to `high`."""

    low: float = -inf
    high: float = inf

    def scaled(self, value: float) -> float:
        """Return a value on a scale without ends: log odds, or the logarithm of the distance from an end."""
        if isinf(self.low) and isinf(self.high):
            return value
        above, below = value - self.low, self.high - value
        rises = 0.0 if isinf(above) else log(above) if above > 0 else -inf
        return rises - (0.0 if isinf(below) else log(below) if below > 0 else -inf)

    def unscaled(self, value: float) -> float:
        """Return the value that has this place on the scale."""
        if isinf(self.low) and isinf(self.high):
            return value
        if isinf(self.low):
            return self.high - exp(-value)
        return self.low + (exp(value) if isinf(self.high) else (self.high - self.low) * float(expit(value)))

    def within(self, value: float) -> float:
        """Return a value, or the end beyond which rounding has put it. ValueError for what the range does not hold."""
        inside = min(max(value, self.low), self.high)
        if abs(value - inside) > ROUNDING * max(1.0, abs(inside)):
            raise ValueError(f"{value:.6g} does not lie between {self.low:g} and {self.high:g}")
        return inside


ANY, POSITIVE, SHARE = Range(), Range(low=0.0), Range(0.0, 1.0)
RELATIVE = Range(low=-1.0)  # of one positive quantity over another, less 1


def per_round(gamma: float) -> Range:
    """Return the range of tokens per round: the target's own token, and at most all `gamma` levels of a draft."""
    return Range(1.0, gamma + 1.0)


@dataclass(frozen=True)
class Interval:
    """An estimate with its interval; the bounds are NaN where the data cannot give any.

    Formatting is the one way to print it: `f"{interval:.3f}"` gives "1.300 (1.184 to 1.441)", "1.300 (–)" where its
    prompts give no bounds, "1.300" where it rests on none, and "–" where there is no estimate. Any number format will
    do (`+.2f`, `.0%`, `,.1f`); an empty one means `.3f`.
    """

    estimate: float
    low: float = nan
    high: float = nan
    prompts: int = 0  # prompts that it rests on; 0 of a number that no prompts bound, or that were not counted

    @classmethod
    def of_replicates(cls, values: np.ndarray, prompts: int, within: Range = POSITIVE) -> "Interval":
        """Return a statistic, [1 + B] of the data and the replicates, with an interval that holds for few prompts, too.

        The bounds are the percentiles of the replicates, each moved away from the estimate by the factor `stretch` on
        the scale of the range, so that they lie in it; for an estimate at an end of the range on the plain scale. There
        are none below `FEWEST` prompts, or where more than 5% of the replicates are not finite. The coverage is in
        `results/few_prompts.json` and `interval_coverage.json`. ValueError if the range does not hold the data's value.
        """
        estimate = float(values[0])
        low, high = percentile_bounds(values[1:]) if prompts >= FEWEST else (nan, nan)
        if isfinite(estimate):
            estimate = within.within(estimate)
        if not isfinite(estimate) or isnan(low):
            return cls(estimate, prompts=prompts)
        scale = within if isfinite(within.scaled(estimate)) else ANY
        centre, factor = scale.scaled(estimate), stretch(prompts)
        moved = (scale.unscaled(centre + factor * (scale.scaled(within.within(end)) - centre)) for end in (low, high))
        low, high = (min(max(bound, within.low), within.high) for bound in moved)
        return cls(estimate, min(low, estimate), max(high, estimate), prompts=prompts)

    @classmethod
    def from_metrics(cls, metrics: Mapping[str, float], name: str) -> "Interval":
        """Return metric `name` with its bounds `name.ci_low` and `name.ci_high`, NaN for what is missing."""
        value, low, high = (float(metrics.get(f"{name}{end}", nan)) for end in ENDS)
        return cls(value, low, high)

    def as_metrics(self, name: str) -> dict[str, float]:
        """Return the value and its bounds under the names that `from_metrics` reads."""
        return {f"{name}{end}": value for end, value in zip(ENDS, (self.estimate, self.low, self.high), strict=True)}

    def as_columns(self, name: str) -> dict[str, float]:
        """Return the value and its bounds as the columns `name`, `name_low` and `name_high` of a table."""
        return {name: self.estimate, f"{name}_low": self.low, f"{name}_high": self.high}

    @property
    def known(self) -> bool:
        """True where both bounds are finite."""
        return isfinite(self.low) and isfinite(self.high)

    @property
    def side(self) -> int:
        """1 where the whole interval lies above 0, -1 where it lies below, 0 where neither can be told."""
        return int(self.low > 0) - int(self.high < 0)

    def contains(self, value: float, slack: float = 1e-9) -> bool | None:
        """Return True if the interval contains `value`, up to rounding by `slack`; None where there is no interval."""
        return self.low <= value + slack and self.high >= value - slack if self.known else None

    def __format__(self, form: str) -> str:
        if not isfinite(self.estimate):
            return "–"
        form = f"+z{form[1:]}" if form.startswith("+") else f"z{form or '.3f'}"  # z: what rounds to zero has no minus
        shown = format(self.estimate, form)
        if not self.known:
            return f"{shown} (–)" if self.prompts else shown
        return f"{shown} ({self.low:{form}} to {self.high:{form}})"


def plus_minus(mean: float, deviation: float) -> str:
    """Print a mean with the standard deviation of what it is the mean of, which is left out where it is not known."""
    return f"{mean:.2f}" + ("" if isnan(deviation) else f" ± {deviation:.2f}")


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


def with_replicates(sums: np.ndarray, replicates: int, seed: int) -> np.ndarray:
    """Return totals [1 + B, S] of `sums` [P, S]: the data's, then those of B replicates, 0 for too few prompts."""
    drawn = resampled_sums(sums, replicates, seed) if len(sums) >= FEWEST else np.empty((0, sums.shape[1]))
    return np.concatenate([sums.sum(axis=0, keepdims=True), drawn])


def bootstrap(
    table: pd.DataFrame,
    statistic: Statistic,
    replicates: int = 10_000,
    seed: int = 0,
    ranges: Mapping[str, Range] | None = None,
) -> dict[str, Interval]:
    """Return the values of `statistic`, a function from column sums to named values, as `Interval.of_replicates`. The
    table has a line per prompt; `ranges` are by name, of those values that are not just positive. ValueError for no
    prompt, sums that are not finite, no replicates, or an impossible value.
    """
    sums = table.to_numpy(dtype=float)
    if len(sums) == 0 or not np.isfinite(sums).all():
        raise ValueError("the bootstrap needs at least one prompt, and finite sums for all of them")
    if replicates < 1:
        raise ValueError(f"replicates must be at least 1, got {replicates}")
    totals = with_replicates(sums, replicates, seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        found = statistic(dict(zip(table.columns, totals.T, strict=True)))
    intervals = {}
    for name, values in found.items():
        try:
            intervals[name] = Interval.of_replicates(values, len(sums), (ranges or {}).get(name, POSITIVE))
        except ValueError as error:
            raise ValueError(f"{name} is impossible: {error}") from None
    return intervals


def interval_of(table: pd.DataFrame, value: Value, within: Range = POSITIVE, replicates: int = 10_000) -> Interval:
    """Return a single value of the column sums, which lies in the range `within`, as `bootstrap` does."""
    return bootstrap(table, lambda sums: {"value": value(sums)}, replicates, ranges={"value": within})["value"]


def stretch(prompts: int) -> float:
    """Return how much further than a percentile of the prompt bootstrap a bound lies: sqrt(P / (P - 1)), by which the
    spread of P prompts is underestimated, times what Student's t with P - 1 degrees of freedom has over the normal law
    (Hesterberg 1411.5279, who moves to outer percentiles instead, and so never beyond the most extreme prompt).
    """
    inside = (1 + LEVEL) / 2
    return sqrt(prompts / (prompts - 1)) * float(stdtrit(prompts - 1, inside) / ndtri(inside))


def percentile_bounds(values: np.ndarray) -> tuple[float, float]:
    """Return the two percentiles that enclose `LEVEL` of the finite replicates; NaN if too many are not finite."""
    finite = values[np.isfinite(values)]
    if len(finite) < (1 - MOST_UNDEFINED) * len(values):
        return nan, nan
    low, high = np.quantile(finite, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
