"""The cost model of a target call, fitted to measured times: t(n, context) from bytes and operations (theory.md 7.2).

    t = fixed + token_seconds x context + (reading, computing)
    reading = bytes(n, context) / bandwidth,  computing = flops(n rounded up to whole tiles, context) x flop_seconds

`(reading, computing)` is the larger of the two where they overlap (a GPU), their sum where the same cores do both (a
CPU); the data choose tile and overlap. The bandwidth is the machine's own, measured apart: every call of a dense model
reads the same weights, so no times of calls can tell their reading from the fixed cost. `rows` of a call here and in
`calibration.json` are the n tokens that it evaluates (rows of the matrix products).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy.optimize import minimize_scalar, nnls

from specdec.theory.roofline import Product, call_bytes, call_flops, padded_rows, ridge_rows

TILES = (1, 2, 4, 8, 16, 32, 64)  # rows computed at a time; with 1 the time has no steps
ALL = 1 << 30  # rows that choose every expert


def call_table(cells: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Return rows, context, median seconds and number of calls of the cells in `calibration.json`."""
    lines = [(c["rows"], c["context"], float(np.median(c["seconds"])), len(c["seconds"])) for c in cells]
    table = pd.DataFrame(lines, columns=["rows", "context", "seconds", "calls"])
    return table.sort_values(["context", "rows"], ignore_index=True)


@dataclass(frozen=True)
class CallCost:
    """A fitted time of a target call, t(n, context)."""

    fixed: float  # seconds that depend on neither rows nor context: launches, the interpreter, small kernels
    token_seconds: float  # per cached token beyond its reading: kernels and copies along the cache
    flop_seconds: float  # seconds per operation, the inverse of the throughput reached; 0 where the data show none
    tile: int  # rows computed at a time
    overlap: bool  # reading and computing at once (the longer counts) or one after the other (their sum does)
    bandwidth: float  # bytes per second, given
    products: tuple[Product, ...]  # what the call multiplies

    def reading(self, rows: Any, context: Any) -> Any:
        """Return the seconds of reading weights and cache."""
        return call_bytes(self.products, context, rows) / self.bandwidth

    def overhead(self, context: Any) -> Any:
        """Return the seconds that are neither reading nor arithmetic."""
        return self.fixed + self.token_seconds * np.asarray(context)

    def seconds(self, rows: Any, context: Any) -> Any:
        """Return t(n, context) in seconds."""
        join = np.maximum if self.overlap else np.add
        computing = self.flop_seconds * call_flops(self.products, padded_rows(rows, self.tile), context)
        return self.overhead(context) + join(self.reading(rows, context), computing)

    def errors(self, table: pd.DataFrame) -> np.ndarray:
        """Return the relative errors |predicted / measured - 1| at the lines of a `call_table`."""
        predicted = self.seconds(table["rows"].to_numpy(), table["context"].to_numpy())
        return np.abs(predicted / table["seconds"].to_numpy() - 1)

    def ridge(self, context: int) -> float | None:
        """Return the n from which arithmetic takes longer than reading, in a mixture than reading all of its experts:
        there verification stops being memory-bound. None where the data show no cost of arithmetic.
        """
        if not self.flop_seconds > 0:
            return None
        read, per_row = call_bytes(self.products, context, ALL), call_flops(self.products, 1, context)
        return float(ridge_rows(read, per_row, self.bandwidth, 1 / self.flop_seconds))


def fit_cost(table: pd.DataFrame, products: Sequence[Product], bandwidth: float) -> CallCost:
    """Fit the cost to a `call_table` by least squares of the relative residuals, with parameters of at least 0, given
    the machine's bandwidth in bytes per second. ValueError for fewer than three numbers of rows.
    """
    if table["rows"].nunique() < 3:
        raise ValueError(f"a cost model needs at least three numbers of rows, got {table['rows'].nunique()}")
    n, context = table["rows"].to_numpy(), table["context"].to_numpy()
    seconds = table["seconds"].to_numpy()
    reading = call_bytes(products, context, n) / bandwidth
    # A single context makes its cost a part of the fixed one.
    along = [context.astype(float)] if table["context"].nunique() > 1 else []
    best: tuple[float, CallCost] | None = None
    for tile in TILES:
        flops = call_flops(products, padded_rows(n, tile), context)
        for overlap in (False, True):
            misfit, (fixed, token, flop) = _least_squares(seconds, reading, flops, along, overlap)
            if best is None or misfit < best[0] * (1 - 1e-9):  # of equal fits the smaller tile
                best = misfit, CallCost(fixed, token, flop, tile, overlap, bandwidth, tuple(products))
    assert best is not None
    return best[1]


def _least_squares(
    seconds: np.ndarray, reading: np.ndarray, flops: np.ndarray, along: Sequence[np.ndarray], overlap: bool
) -> tuple[float, tuple[float, float, float]]:
    """Return the misfit, and (fixed, seconds per cached token, seconds per operation)."""
    one = np.ones(len(seconds))
    if not overlap:
        misfit, (fixed, *token, flop) = relative_fit(seconds, [one, *along, flops], reading)
        return misfit, (fixed, token[0] if token else 0.0, flop)

    # The longer of two is linear in the rest once the throughput is known: search over that one number.
    def at(log_flop: float) -> tuple[float, tuple[float, float, float]]:
        flop = float(np.exp(log_flop))
        misfit, (fixed, *token) = relative_fit(seconds, [one, *along], np.maximum(reading, flop * flops))
        return misfit, (fixed, token[0] if token else 0.0, flop)

    fastest = np.log(seconds.max() / flops.max())  # all of the time is arithmetic
    grid = np.linspace(fastest - 7, fastest + 1, 25)
    start = int(np.argmin([at(value)[0] for value in grid]))
    bounds = (grid[max(start - 1, 0)], grid[min(start + 1, len(grid) - 1)])
    refined = minimize_scalar(lambda value: at(value)[0], bounds=bounds, method="bounded", options={"xatol": 1e-4})
    return min(at(float(refined.x)), at(float(grid[start])), key=lambda item: item[0])


def relative_fit(seconds: np.ndarray, columns: ArrayLike, rest: np.ndarray | float = 0.0) -> tuple[float, list[float]]:
    """Return the misfit, and the coefficients of at least 0 of `columns` [C, N] that with known seconds `rest` give
    `seconds` [N], by least squares of the relative residuals.
    """
    design = np.asarray(columns, dtype=float)
    scales = design.max(axis=1)  # for the solver
    values, misfit = nnls(design.T / scales / seconds[:, None], 1 - rest / seconds)
    return float(misfit), (values / scales).tolist()


def predicted_calls(rows: ArrayLike, reads: ArrayLike, seconds: ArrayLike, known: Sequence[int]) -> np.ndarray:
    """Return the seconds [N] of calls on several tokens of a mixture, by the cost model fitted on a few of them:
    t(n) = a r(n) + b n, of reading and computing one after the other, as on a CPU (theory.md 7.2 and 7.6), with a and b
    of at least 0 by least squares of relative residuals. Its fixed seconds are left out: two calls tell two numbers.
    ValueError if fewer than two of the calls are on a `known` number of tokens.

    Args:
        rows: [N] tokens n of each call.
        reads: [N] bytes of weights r(n) that it reads, in any unit: those of the distinct experts that its tokens chose
            or are expected to choose, and the rest.
        seconds: [N] timed, of which only those at `known` are looked at.
        known: the n of two or more calls that the coefficients are fitted on.
    """
    seen = np.isin(rows, known)
    if seen.sum() < 2:
        raise ValueError(f"calls on {list(known)} tokens tell no two coefficients: give the n of two calls")
    columns = np.stack([reads, rows]).astype(float)
    return relative_fit(np.asarray(seconds, dtype=float)[seen], columns[:, seen])[1] @ columns


@dataclass(frozen=True)
class PredictionError:
    """Relative errors |predicted / measured - 1| on calls that the fit did not see."""

    median: float
    worst: float
    cells: int


def held_out(
    table: pd.DataFrame, fit: Callable[[pd.DataFrame], CallCost], column: str = "rows"
) -> PredictionError | None:
    """Leave out each value of `column` in turn, fit the rest, and return the errors on what was left out; None where
    too few values are left to fit: three numbers of rows, or two contexts.
    """
    values = table[column].unique()
    if len(values) < (4 if column == "rows" else 3):
        return None
    own = [table[column] == value for value in values]
    errors = np.concatenate([fit(table[~left_out]).errors(table[left_out]) for left_out in own])
    return PredictionError(float(np.median(errors)), float(np.max(errors)), len(errors))


def fit_server_calls(times: pd.DataFrame) -> tuple[dict[str, float], PredictionError]:
    """Fit the calls of a study's `block_times` in rows, batches of B = k sequences of w + 1 tokens each, as a simulated
    server has them (`specdec.cost_model.SimulatedCost`), where reading weights cannot be told from the fixed cost:

        t = fixed + row x tokens + cached x context x B + key x tokens x (context + tokens / B),  tokens = B (w + 1)

    Returns the coefficients by their names there, and how far they may be trusted beyond what was timed: the errors on
    the largest batch of a fit that saw only smaller ones, NaN for fewer than three batches. ValueError if fewer than
    three cells were timed.
    """
    # Median seconds by k (sequences), w (draft tokens of each) and context.
    cells = times.dropna(subset="seconds").groupby(["k", "w", "context"])["seconds"].median().reset_index()
    if len(cells) < 3:
        raise ValueError(f"the cost of a batch needs at least three timed calls, got {len(cells)}")
    k, w, context, seconds = (cells[name].to_numpy(dtype=float) for name in ("k", "w", "context", "seconds"))
    tokens = k * (w + 1)
    columns = np.stack([np.ones(len(cells)), tokens, context * k, tokens * (context + w + 1)])
    largest = k == k.max()
    errors = np.array([np.nan])
    if cells["k"].nunique() > 2:
        _, seen = relative_fit(seconds[~largest], columns[:, ~largest])
        errors = np.abs(seen @ columns[:, largest] / seconds[largest] - 1)
    _, values = relative_fit(seconds, columns)
    error = PredictionError(float(np.median(errors)), float(np.max(errors)), int(largest.sum()))
    return dict(zip(("fixed_s", "row_s", "cached_s", "key_s"), values, strict=True)), error
