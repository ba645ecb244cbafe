"""The batch at which speculation stops paying: a crossing of measured speedups, and its interval from few units."""

from math import inf

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from ..intervals import FEWEST, LEVEL, Interval, stretch

NEVER, ALWAYS = 0.0, inf  # no batch that was tried pays; the largest still does


def stops_paying(batches: ArrayLike, speedups: ArrayLike) -> np.ndarray:
    """Return the batch [...] behind which no batch pays: where the speedup falls below 1 for the last time.

    Between two batches the speedup is a straight line over log2 of the batch. `NEVER` where no batch has a speedup of
    at least 1, `ALWAYS` where the largest has, NaN where a speedup is missing.

    batches: [M], ascending; speedups: [..., M].
    """
    logs, gains = np.log2(np.asarray(batches, dtype=float)), np.asarray(speedups, dtype=float)
    pays = gains >= 1
    last = gains.shape[-1] - 1 - np.argmax(pays[..., ::-1], axis=-1)  # the largest batch that pays
    after = np.minimum(last + 1, gains.shape[-1] - 1)
    high, low = (np.take_along_axis(gains, at[..., None], -1)[..., 0] for at in (last, after))
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (high - 1) / (high - low)
        batch = np.exp2(logs[last] + share * (logs[after] - logs[last]))
    batch = np.where(last == after, ALWAYS, batch)
    batch = np.where(pays.any(axis=-1), batch, NEVER)
    return np.where(np.isnan(gains).any(axis=-1), np.nan, batch)


def few_units_interval(values: np.ndarray, units: int) -> Interval:
    """Return a statistic [1 + R] of the data and of R replicates over a few units as the expanded percentile interval
    of Hesterberg (1411.5279), whose plain one is too short by `stretch`. Infinite values stand at the end of the order
    and may be bounds; fewer than `FEWEST` units, or a value that is missing in a replicate, give no bounds.
    """
    replicates = np.sort(values[1:])
    if units < FEWEST or not len(replicates) or np.isnan(replicates).any():
        return Interval(float(values[0]), prompts=units)
    below = float(ndtr(-stretch(units) * ndtri((1 + LEVEL) / 2)))
    # Order statistics, because a mean of two neighbours has no value where one of them is infinite.
    low, high = np.quantile(replicates, [below, 1 - below], method="inverted_cdf")
    return Interval(float(values[0]), float(low), float(high), prompts=units)


def batch_in_words(value: float, largest: int) -> str:
    """Return a break-even batch as a reader says it: "5.3", "no batch", "more than 32", "–"."""
    if np.isnan(value):
        return "–"
    if value == NEVER:
        return "no batch"
    return f"more than {largest}" if value == ALWAYS else f"{value:.1f}"


def interval_in_words(value: Interval, largest: int) -> str:
    """Return a break-even batch with its interval, such as "5.3 (no batch to more than 32)"."""
    shown = batch_in_words(value.estimate, largest)
    if np.isnan(value.low) or np.isnan(value.high):
        return shown
    return f"{shown} ({batch_in_words(value.low, largest)} to {batch_in_words(value.high, largest)})"
