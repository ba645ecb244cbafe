"""The cost of calls on a batch, fitted to measured ones: t(B, gamma, context), for a server that is simulated.

    t = fixed + row x tokens + cached x context x B + key x tokens x (context + tokens / B)

with tokens = B (gamma + 1): the form of `specdec.cost_model.SimulatedCost`, where a single machine's weights cannot be
told from the fixed cost. Coefficients are at least 0, found by least squares of the relative residuals.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import nnls

NAMES = ("fixed_s", "row_s", "cached_s", "key_s")


@dataclass(frozen=True)
class ServerCalls:
    """The fit and its errors."""

    coefficients: Mapping[str, float]  # by their names in `SimulatedCost`
    # median_error, worst_error: |predicted / measured - 1| of the largest batch, by a fit that saw only smaller ones,
    # NaN where there are fewer than three batches: how far it may be trusted beyond what was timed
    median_error: float
    worst_error: float


def fit_server_calls(times: pd.DataFrame) -> ServerCalls:
    """Fit the calls of a study's `block_times` in rows, batches of k sequences of w + 1 tokens each. ValueError if
    fewer than three cells were timed.
    """
    # Median seconds by k (sequences), w (draft tokens of each) and context.
    cells = times.dropna(subset="seconds").groupby(["k", "w", "context"])["seconds"].median().reset_index()
    if len(cells) < 3:
        raise ValueError(f"the cost of a batch needs at least three timed calls, got {len(cells)}")
    largest = cells["k"] == cells["k"].max()
    errors = np.array([np.nan])
    if cells["k"].nunique() > 2:
        seen = _fitted(cells[~largest])
        errors = np.abs(_design(cells[largest]) @ seen / cells.loc[largest, "seconds"].to_numpy() - 1)
    values = dict(zip(NAMES, map(float, _fitted(cells)), strict=True))
    return ServerCalls(values, float(np.median(errors)), float(np.max(errors)))


def _design(cells: pd.DataFrame) -> np.ndarray:
    """Return the columns [N, 4] that the coefficients multiply."""
    k, w, context = (cells[name].to_numpy(dtype=float) for name in ("k", "w", "context"))
    tokens = k * (w + 1)
    return np.stack([np.ones(len(cells)), tokens, context * k, tokens * (context + w + 1)], axis=1)


def _fitted(cells: pd.DataFrame) -> np.ndarray:
    design, seconds = _design(cells), cells["seconds"].to_numpy()
    scales = design.max(axis=0)
    values, _ = nnls(design / scales / seconds[:, None], np.ones(len(cells)))
    return values / scales
