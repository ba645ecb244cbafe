"""Sums over prompts for several strategies, resampled together, so that differences between strategies are paired."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from .intervals import Interval, bootstrap_bounds, resampled_sums

LEVEL = 0.95


@dataclass(frozen=True)
class Sums:
    """Sums over prompts, of the data and of bootstrap replicates.

    Attributes:
        cells: a line for each strategy, with its keys; C of them.
        values: by column, [1 + B, C]: the data's, then the replicates'.
        prompts: number of prompts.
    """

    cells: pd.DataFrame
    values: dict[str, np.ndarray]
    prompts: int

    def ratio(self, over: str, under: str) -> np.ndarray:
        """Return the ratio of two columns, [1 + B, C]; NaN or infinite where the second is 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.values[over] / self.values[under]

    def interval(self, values: np.ndarray) -> Interval:
        """Return a statistic [1 + B] of the data and the replicates as an Interval; a single prompt gives no bounds."""
        bounds = bootstrap_bounds(float(values[0]), values[1:], self.prompts, LEVEL)
        return Interval(float(values[0]), *bounds, LEVEL, self.prompts)

    def table(self, statistics: Mapping[str, np.ndarray]) -> pd.DataFrame:
        """Return the cells with columns `name`, `name_low` and `name_high` for each statistic [1 + B, C]."""
        table = self.cells.copy()
        for name, values in statistics.items():
            found = [self.interval(column) for column in values.T]
            table[name] = values[0]
            table[f"{name}_low"] = np.array([each.low for each in found])
            table[f"{name}_high"] = np.array([each.high for each in found])
        return table


def strategy_sums(table: pd.DataFrame, keys: Sequence[str], columns: Sequence[str], replicates: int, seed: int) -> Sums:
    """Add up `columns` by prompt and strategy, and draw the replicates.

    Args:
        table: lines for any number of streams of each strategy (`keys`) and prompt; every strategy has every prompt. A
            value that is missing (NaN) should be so in all lines of a strategy.
    """
    wide = table.groupby(["prompt", *keys])[list(columns)].sum(min_count=1)
    prompts = wide.index.get_level_values("prompt").unique()
    cells = wide.index.droplevel("prompt").unique().to_frame(index=False)
    drawn = with_replicates(wide.to_numpy(dtype=float).reshape(len(prompts), -1), replicates, seed)
    values = drawn.reshape(len(drawn), len(cells), len(columns))
    return Sums(cells, {column: values[..., index] for index, column in enumerate(columns)}, len(prompts))


def with_replicates(sums: np.ndarray, replicates: int, seed: int) -> np.ndarray:
    """Return totals [1 + B, S] of `sums` [P, S]: the data's, then those of B bootstrap replicates, 0 for one prompt."""
    drawn = resampled_sums(sums, replicates, seed) if len(sums) > 1 else np.empty((0, sums.shape[1]))
    return np.concatenate([sums.sum(axis=0, keepdims=True), drawn])


def tokens_per_call(table: pd.DataFrame, keys: Sequence[str], replicates: int, seed: int) -> pd.DataFrame:
    """Return committed tokens per target call by strategy: keys, tokens, tokens_low, tokens_high, prompts."""
    sums = strategy_sums(table, keys, ["tokens", "rounds"], replicates, seed)
    return sums.table({"tokens": sums.ratio("tokens", "rounds")}).assign(prompts=sums.prompts)


def interval(line: Mapping[str, float] | pd.Series, name: str) -> Interval:
    """Return the value `name` of a table's line with its bounds `name_low` and `name_high`."""
    return Interval(float(line[name]), float(line[f"{name}_low"]), float(line[f"{name}_high"]))


def intervals(table: pd.DataFrame, name: str) -> list[Interval]:
    """Return a table's column `name` as Intervals."""
    return [interval(line, name) for line in table.to_dict("records")]


def printed(table: pd.DataFrame, name: str, form: str) -> list[str]:
    """Return a table's column `name` with its bounds, printed in a number format."""
    return [f"{each:{form}}" for each in intervals(table, name)]


def curve(table: pd.DataFrame, over: str, name: str) -> dict[int, float]:
    """Return a table's column `name` by its column `over`, without lines that have no value."""
    return table.set_index(over)[name].dropna().to_dict()


def metric(name: str, value: Interval) -> dict[str, float]:
    """Return a value with its bounds as metrics."""
    return {name: value.estimate, f"{name}.ci_low": value.low, f"{name}.ci_high": value.high}


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Keep the metrics that have a value."""
    return {name: float(value) for name, value in metrics.items() if np.isfinite(value)}
