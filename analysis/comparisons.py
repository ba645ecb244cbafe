"""Strategies compared on the same prompts: sums over prompts, resampled together, so that differences are paired."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from .intervals import ANY, POSITIVE, SHARE, Interval, Range, per_round, with_replicates
from .sections import joined

OF_RULES = ["tokens", "rounds", "seconds", "offers", "log_likelihood", "tv", "otherwise"]
"""The columns of texts that `StrategyComparison.of_rules` reads."""
RANGES_OF_RULES = {  # of what `of_rules` returns, where that is not just positive
    **{"rate": Range(low=1.0), "lead": ANY, "log_likelihood": Range(high=0.0)},
    **dict.fromkeys(("tv", "otherwise"), SHARE),
}


@dataclass(frozen=True)
class StrategyComparison:
    """Sums over prompts for several strategies, of the data and of bootstrap replicates."""

    cells: pd.DataFrame  # a line for each strategy, with its keys; C of them
    values: dict[str, np.ndarray]  # by column, [1 + B, C]: the data's, then the replicates'
    prompts: int  # number of prompts

    def ratio(self, over: str, under: str) -> np.ndarray:
        """Return the ratio of two columns, [1 + B, C]; NaN or infinite where the second is 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.values[over] / self.values[under]

    def place(self, *keys: Any) -> int | None:
        """Return the place of a strategy by all its keys, None where it was not compared."""
        places = np.flatnonzero((self.cells == list(keys)).all(axis=1))
        return int(places[0]) if len(places) else None

    def beside(self, values: np.ndarray, **other: Any) -> np.ndarray:
        """Return the values [1 + B, C] of the strategy with `other` in place of some keys for each; else NaN."""
        partners = pd.MultiIndex.from_frame(self.cells.assign(**other))
        places = pd.MultiIndex.from_frame(self.cells).get_indexer(partners)  # -1 of one that was not compared
        return np.where(places >= 0, values[:, places], np.nan)

    def of_rules(self, plain: Mapping[str, Any], strict: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Return what rules of acceptance earn and cost, [1 + B, C] each: rate (tokens per round), speedup (seconds per
        token of the partner without drafts over the rule's), lead (rate less that of the partner without loss),
        log_likelihood and tv (per token) and otherwise (per round with a proposal). `plain` and `strict` are the keys
        of those partners, see `beside`.
        """
        rate, per_token = self.ratio("tokens", "rounds"), self.ratio("seconds", "tokens")
        return {
            "rate": rate,
            "speedup": self.beside(per_token, **plain) / per_token,
            "lead": rate - self.beside(rate, **strict),
            "log_likelihood": self.ratio("log_likelihood", "tokens"),
            "tv": self.ratio("tv", "tokens"),
            "otherwise": self.ratio("otherwise", "offers"),
        }

    def interval(self, values: np.ndarray, within: Range = POSITIVE) -> Interval:
        """Return a statistic [1 + B] of the data and the replicates as an Interval; too few prompts give no bounds."""
        return Interval.of_replicates(values, self.prompts, within)

    def table(
        self,
        statistics: Mapping[str, np.ndarray],
        ranges: Mapping[str, Range | Sequence[Range]] | None = None,
        interval: Callable[[np.ndarray, Range], Interval] | None = None,
    ) -> pd.DataFrame:
        """Return the cells with columns `name`, `name_low` and `name_high` for each statistic [1 + B, C]; `ranges`, of
        all cells or of each, where one is not just positive, and `interval` where it is not that of prompts.
        """
        table = self.cells.copy()
        for name, values in statistics.items():
            within = (ranges or {}).get(name, POSITIVE)
            each = [within] * len(table) if isinstance(within, Range) else within
            bounded = [(interval or self.interval)(*pair) for pair in zip(values.T, each, strict=True)]
            table[name] = values[0]
            table[f"{name}_low"] = np.array([value.low for value in bounded])
            table[f"{name}_high"] = np.array([value.high for value in bounded])
        return table


def compare(
    table: pd.DataFrame, keys: Sequence[str], columns: Sequence[str], replicates: int, seed: int
) -> StrategyComparison:
    """Add up `columns` by prompt and strategy (`keys`), and draw the replicates. Every strategy has any number of lines
    for every prompt; a value that is missing (NaN) in one of its lines is missing of the strategy.
    """
    wide = table.groupby(["prompt", *keys])[list(columns)].sum(skipna=False)
    prompts = wide.index.get_level_values("prompt").unique()
    cells = wide.index.droplevel("prompt").unique().to_frame(index=False)
    drawn = with_replicates(wide.to_numpy(dtype=float).reshape(len(prompts), -1), replicates, seed)
    values = drawn.reshape(len(drawn), len(cells), len(columns))
    return StrategyComparison(cells, {column: values[..., index] for index, column in enumerate(columns)}, len(prompts))


class ReplayedSpeedups:
    """Tokens per call and speedup of strategies whose rounds were replayed and whose seconds are predicted.

    Attributes:
        texts: a line for each strategy and stream: the replay, with `seconds` and `plain_s`.
        compared: their sums over prompts.
        statistics: tokens (per call) and speedup, [1 + B, C] each; the speedup of what could not be timed is NaN.
        cells: a line for each strategy: keys, tokens and speedup with _low and _high, nodes (mean of a draft), what a
            study adds.
    """

    def __init__(self, texts: pd.DataFrame, keys: Sequence[str], depth: str, replicates: int, seed: int) -> None:
        """Add up texts with their seconds. depth: the key that no draft of a strategy is deeper than."""
        self.texts = texts
        self.compared = compare(texts, keys, ["tokens", "rounds", "nodes", "seconds", "plain_s"], replicates, seed)
        ratio = self.compared.ratio
        self.statistics = {"tokens": ratio("tokens", "rounds"), "speedup": ratio("plain_s", "seconds")}
        possible = {"tokens": [per_round(most) for most in self.compared.cells[depth]]}
        cells = self.compared.table(self.statistics, possible)
        self.cells = cells.assign(nodes=ratio("nodes", "rounds")[0])

    def place(self, *keys: Any) -> int:
        """Return the place of a strategy, which has been compared."""
        place = self.compared.place(*keys)
        assert place is not None, keys
        return place

    def line(self, *keys: Any) -> pd.Series:
        """Return the line of `cells` of a strategy."""
        return self.cells.loc[self.place(*keys)]

    def lead(self, name: str, first: Sequence[Any], second: Sequence[Any]) -> Interval:
        """Return how much `tokens` or `speedup` one strategy has beyond another, in the same replicates."""
        values = self.statistics[name]
        return self.compared.interval(values[:, self.place(*first)] - values[:, self.place(*second)], ANY)


def tokens_per_call(table: pd.DataFrame, keys: Sequence[str], replicates: int, seed: int) -> pd.DataFrame:
    """Return tokens, tokens_low, tokens_high (per target call) and prompts by strategy; w is one of the `keys`."""
    compared = compare(table, keys, ["tokens", "rounds"], replicates, seed)
    possible = {"tokens": [per_round(most) for most in compared.cells["w"]]}
    return compared.table({"tokens": compared.ratio("tokens", "rounds")}, possible).assign(prompts=compared.prompts)


OVER_FASTEST = "speedup.over_fastest"  # of a gamma in `summary.json`: its speedup over the fastest one's, paired


def best_gammas(arms: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the fastest gamma of a `summary.json`, then those not told apart from it; none if none surely gains."""
    timed = [arm for arm in arms if "speedup" in arm]
    fastest = max(timed, key=lambda arm: arm["speedup"], default=None)
    if fastest is None or not (fastest["speedup"] > 1 and Interval.from_metrics(fastest, "speedup").known):
        return []
    close = [arm for arm in timed if arm is not fastest and Interval.from_metrics(arm, OVER_FASTEST).contains(1.0)]
    return [int(arm["gamma"]) for arm in (fastest, *close)]


def best_in_words(arms: Sequence[Mapping[str, Any]]) -> str:
    """Return the clause "4, 6 and 8 cannot be told apart" about the best gamma; "" where there is none or no other."""
    best = sorted(best_gammas(arms))
    return f"{joined([str(gamma) for gamma in best])} cannot be told apart" if len(best) > 1 else ""


def interval(line: Mapping[str, float] | pd.Series, name: str) -> Interval:
    """Return the value `name` of a table's line with its bounds `name_low` and `name_high`."""
    return Interval(float(line[name]), float(line[f"{name}_low"]), float(line[f"{name}_high"]))


def intervals(table: pd.DataFrame, name: str) -> list[Interval]:
    """Return a table's column `name` as Intervals."""
    return [interval(line, name) for line in table.to_dict("records")]


def printed(table: pd.DataFrame, name: str, form: str) -> list[str]:
    """Return a table's column `name` of numbers or Intervals in print, with the bounds that there are."""
    if f"{name}_low" in table:
        return [f"{each:{form}}" for each in intervals(table, name)]
    return [f"{each if isinstance(each, Interval) else Interval(each):{form}}" for each in table[name]]


def listed(table: pd.DataFrame, columns: Mapping[str, str]) -> pd.DataFrame:
    """Return a table for people: by heading a column, with a number format behind it if it is to be printed."""
    split = {heading: column.partition(":") for heading, column in columns.items()}
    shown = {heading: printed(table, name, form) if form else table[name] for heading, (name, _, form) in split.items()}
    return pd.DataFrame(shown).reset_index(drop=True)


def metrics_of(table: pd.DataFrame, name: str, quantities: Mapping[str, str], bounds: bool = True) -> dict[str, float]:
    """Return values of a table's lines as metrics, those that have one. `quantities` has a column by `what`; `name` has
    the line's columns and `what` in braces, such as "grid/{what}.{k}x{w}".
    """
    metrics: dict[str, float] = {}
    for line in table.to_dict("records"):
        for what, column in quantities.items():
            key = name.format(**{**line, "what": what})
            metrics |= interval(line, column).as_metrics(key) if bounds else {key: line[column]}
    return finite(metrics)


def curves_of(
    table: pd.DataFrame, name: str, by: Sequence[str], over: str, quantities: Mapping[str, str]
) -> dict[str, dict[int, float]]:
    """Return columns over another one, a curve for each group of lines, named as for `metrics_of`; empty ones go."""
    curves = {
        name.format(**dict(zip(by, key, strict=True)), what=what): curve(part, over, column)
        for key, part in table.groupby(list(by))
        for what, column in quantities.items()
    }
    return {key: points for key, points in curves.items() if points}


def curve(table: pd.DataFrame, over: str, name: str) -> dict[int, float]:
    """Return a table's column `name` by its column `over`, without lines that have no value."""
    return table.set_index(over)[name].dropna().to_dict()


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """Keep the metrics that have a value."""
    return {name: float(value) for name, value in values.items() if np.isfinite(value)}
