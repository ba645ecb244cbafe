"""The numbers of study `typical_acceptance`: tokens per call, speedup and quality of each rule, differences paired. No
torch.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd

from .replayed import Sums, prompt_sums

KEYS = ["temperature", "rule", "epsilon"]
RATIOS = {  # figure -> sums whose ratio it is
    "rate": ("tokens", "rounds"),
    "log_likelihood": ("log_likelihood", "tokens"),
    "tv": ("tv", "tokens"),
    "otherwise": ("otherwise", "offers"),
}


def rules(outputs: pd.DataFrame, replicates: int, seed: int) -> tuple[pd.DataFrame, int]:
    """One row per temperature, rule and epsilon, and the number of prompts.

    Columns, each with `_low` and `_high` of a prompt bootstrap: rate (tokens per call), speedup (over plain decoding at
    the same temperature), log_likelihood and tv (per token), otherwise (per round with a proposal), lead (rate less
    that of rejection at the same temperature) and rise (rate less the same rule's at the lowest temperature above 0).
    NaN where there is nothing to compare with, and for quality that is not known of all of a rule's texts.
    """
    outputs = outputs.copy()
    for column in ("tv", "otherwise"):
        missing = outputs[column].isna().groupby([outputs[key] for key in KEYS]).transform("any")
        outputs.loc[missing, column] = np.nan
    columns = ["tokens", "rounds", "seconds", "offers", "log_likelihood", "tv", "otherwise"]
    sums = prompt_sums(outputs, KEYS, columns, replicates, seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        figures = {name: sums.values[over] / sums.values[under] for name, (over, under) in RATIOS.items()}
        per_token = sums.values["seconds"] / sums.values["tokens"]
    cells = sums.cells
    warm = cells.loc[cells["temperature"] > 0, "temperature"].min()
    figures |= {
        "speedup": _beside(per_token, _places(cells, lambda row: (row["temperature"], "plain", 0.0))) / per_token,
        "lead": figures["rate"]
        - _beside(figures["rate"], _places(cells, lambda row: (row["temperature"], "rejection", 0.0))),
        "rise": figures["rate"]
        - _beside(figures["rate"], _places(cells, lambda row: (warm, row["rule"], row["epsilon"]))),
    }
    return _with_intervals(sums, figures), sums.prompts


def _places(cells: pd.DataFrame, partner: Callable[[pd.Series], tuple[float, str, float]]) -> list[int | None]:
    """For every cell, where the one stands that it is compared with."""
    known = {key: place for place, key in enumerate(cells[KEYS].itertuples(index=False, name=None))}
    return [known.get(partner(row)) for _, row in cells.iterrows()]


def _beside(values: np.ndarray, places: list[int | None]) -> np.ndarray:
    """Columns of values [1 + B, C] at `places`, NaN where there is none."""
    found = np.full_like(values, np.nan)
    for column, place in enumerate(places):
        if place is not None:
            found[:, column] = values[:, place]
    return found


def _with_intervals(sums: Sums, figures: dict[str, np.ndarray]) -> pd.DataFrame:
    cells = sums.cells.copy()
    for name, values in figures.items():
        low, high = sums.interval(values)
        cells = cells.assign(**{name: values[0], f"{name}_low": low, f"{name}_high": high})
    return cells
