"""Where verification stops being nearly free: slow-downs of blocks, how they grow with the tokens evaluated, and from
where they do. From the tables of study `phase_transition`; no torch.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import isotonic_regression

UNIT = (1, 1)
"""The block whose call is the unit of a slow-down: one row of width 1, as in N-Grammys (2411.03786)."""
PLAIN = (1, 0)
_FLAT = 1.1  # slow-down over all sizes below which nothing can be said about where it begins to grow


def slowdowns(times: pd.DataFrame) -> pd.DataFrame:
    """t(k, w, context) / t(1, 1, context) by cell: k, w, context, rows_evaluated, calls, seconds (mean of the calls),
    slowdown, spread (standard deviation of the calls over their mean; NaN for a single call).

    times: as `timing.blocks` has them. Cells that were not timed, and contexts without t(1, 1), are left out.
    """
    timed = times.dropna(subset="seconds")
    groups = timed.groupby(["context", "k", "w", "rows_evaluated"])["seconds"]
    cells = groups.agg(calls="size", mean="mean", deviation="std").reset_index()
    units = cells[(cells["k"] == UNIT[0]) & (cells["w"] == UNIT[1])].set_index("context")["mean"]
    cells = cells[cells["context"].isin(units.index)]
    return pd.DataFrame(
        {
            "k": cells["k"],
            "w": cells["w"],
            "context": cells["context"],
            "rows_evaluated": cells["rows_evaluated"],
            "calls": cells["calls"],
            "seconds": cells["mean"],
            "slowdown": cells["mean"] / cells["context"].map(units),
            "spread": cells["deviation"] / cells["mean"],
        }
    ).reset_index(drop=True)


@dataclass(frozen=True)
class Growth:
    """How the slow-down at one context grows with the tokens evaluated, whatever the block's shape.

    Attributes:
        tokens: sizes, ascending.
        slowdown: median over all calls of each size, over that of t(1, 1): one disturbed call does not move it.
        blocks: shapes of each size.
        low, high: quartiles of the calls of each size, over the same.
        fitted: the values closest to the medians that never fall from a size to the next.
    """

    tokens: np.ndarray
    slowdown: np.ndarray
    blocks: np.ndarray
    low: np.ndarray
    high: np.ndarray
    fitted: np.ndarray

    def within(self, limit: float) -> int:
        """The largest size up to which no call costs more than `limit` times t(1, 1)."""
        below = self.tokens[self.fitted <= limit]
        return int(below[-1]) if len(below) else 0

    @property
    def largest(self) -> int:
        return int(self.tokens[-1])

    def steps(self, largest: int, least: float = 0.08) -> list[tuple[int, int, float]]:
        """Rises by more than `least` between neighbouring numbers of tokens up to `largest`, and by more than the
        middle halves of their calls scatter: from, to, relative size. Where a further tile begins, it shows so.
        """
        rises = self.fitted[1:] / self.fitted[:-1] - 1
        clear = (rises > least) & (self.low[1:] > self.high[:-1]) & (np.diff(self.tokens) == 1)
        return [
            (int(self.tokens[at]), int(self.tokens[at + 1]), float(rises[at]))
            for at in np.flatnonzero(clear & (self.tokens[1:] <= largest))
        ]

    def knee(self) -> float | None:
        """n from which every token adds to the time, of the model flat up to n, then a straight line (least squares of
        relative residuals): the measured end of the memory-bound region. The smallest size where there is no flat
        part; None where the slow-down never grows.
        """
        if self.fitted[-1] < _FLAT * self.fitted[0] or len(self.tokens) < 3:
            return None
        candidates = np.unique(np.concatenate([self.tokens[:-1], np.geomspace(self.tokens[0], self.tokens[-2], 400)]))
        misfits = [self._misfit(candidate) for candidate in candidates]
        return float(candidates[int(np.argmin(misfits))])

    def _misfit(self, knee: float) -> float:
        weights = np.sqrt(self.blocks) / self.slowdown
        design = np.stack([np.ones(len(self.tokens)), np.maximum(0.0, self.tokens - knee)], axis=1) * weights[:, None]
        target = self.slowdown * weights
        found, *_ = np.linalg.lstsq(design, target, rcond=None)
        return float(np.sum((design @ found - target) ** 2))


def growth(times: pd.DataFrame, context: int) -> Growth:
    """Over all blocks at `context`, where t(1, 1) was timed."""
    timed = times.dropna(subset="seconds")
    timed = timed[timed["context"] == context]
    by_size = timed.groupby("rows_evaluated")
    medians = by_size["seconds"].median()
    unit = timed.loc[(timed["k"] == UNIT[0]) & (timed["w"] == UNIT[1]), "seconds"].median()
    ratios = (medians / unit).to_numpy()
    blocks = (by_size["k"].size() / by_size["call"].nunique()).to_numpy()
    return Growth(
        tokens=medians.index.to_numpy(),
        slowdown=ratios,
        blocks=blocks,
        low=(by_size["seconds"].quantile(0.25) / unit).to_numpy(),
        high=(by_size["seconds"].quantile(0.75) / unit).to_numpy(),
        fitted=isotonic_regression(ratios, weights=blocks).x,
    )


def shape_effect(times: pd.DataFrame, context: int, least: int = 2) -> tuple[float, int] | None:
    """Median over sizes of t of the block with most rows over t of the block with fewest, of equal tokens evaluated,
    and how many sizes have blocks whose numbers of rows differ by a factor of `least` or more; None where none has.
    """
    timed = times.dropna(subset="seconds")
    timed = timed[(timed["context"] == context) & (timed["w"] > 0)]
    cells = timed.groupby(["rows_evaluated", "k"])["seconds"].median().reset_index()
    ratios = []
    for _, same in cells.groupby("rows_evaluated"):
        fewest, most = same.loc[same["k"].idxmin()], same.loc[same["k"].idxmax()]
        if most["k"] >= least * fewest["k"]:
            ratios.append(most["seconds"] / fewest["seconds"])
    return (float(np.median(ratios)), len(ratios)) if ratios else None


def crossing(tokens: np.ndarray, operations: np.ndarray, threshold: float) -> float | None:
    """The size at which operations per byte reach `threshold`, between two sizes on a straight line; None if they do
    not. Sizes ascending; below the smallest counts as there.
    """
    above = np.flatnonzero(operations >= threshold)
    if not len(above):
        return None
    at = int(above[0])
    if at == 0:
        return float(tokens[0])
    share = (threshold - operations[at - 1]) / (operations[at] - operations[at - 1])
    return float(tokens[at - 1] + share * (tokens[at] - tokens[at - 1]))


def roofline_ridge(intensity: pd.DataFrame, context: int) -> float | None:
    """n* = (W + KV) F / (2 P BW) of one cache (THEORY 7): tokens at which a call without any overhead would leave the
    memory-bound region; None without a table of products.
    """
    step = intensity[(intensity["context"] == context) & (intensity["k"] == PLAIN[0]) & (intensity["w"] == PLAIN[1])]
    if step.empty:
        return None
    return float(step["threshold"].iloc[0] * step["bytes"].sum() / step["flops"].sum())


def product_lines(intensity: pd.DataFrame, context: int) -> pd.DataFrame:
    """Operations per byte by product and tokens evaluated at `context`: products (the names of those that move and
    compute alike), size (of the first), rows_evaluated, low and high (over the blocks of that many tokens), threshold.
    """
    groups: dict[tuple[float, ...], tuple[list[str], pd.DataFrame]] = {}
    at = intensity[intensity["context"] == context]
    for (name, inputs, outputs), rows in at.groupby(["product", "inputs", "outputs"], sort=False):
        lines = rows.groupby("rows_evaluated").agg(
            low=("operations_per_byte", "min"), high=("operations_per_byte", "max"), threshold=("threshold", "first")
        )
        lines["size"] = f"{inputs or 'cache'} x {outputs or 'cache'}"
        # A matrix and its transpose are alike too.
        names, _ = groups.setdefault(tuple(lines["low"].round(9)), ([], lines.reset_index()))
        names.append(str(name))
    named = [lines.assign(products=", ".join(names)) for names, lines in groups.values()]
    return pd.concat(named, ignore_index=True) if named else pd.DataFrame()
