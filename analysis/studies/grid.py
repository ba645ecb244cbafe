"""The numbers of study `grid`: tokens per call and speedup of every block with intervals, the best block, its lead over
another, and what live runs measured beside what was predicted. No torch.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from ..cost.block_seconds import repeats_of, stream_seconds
from .replayed import Sums, prompt_sums

Block = tuple[int, int]


@dataclass(frozen=True)
class Lead:
    """A value of one block less that of another, in the same replicates."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Grid:
    """
    Attributes:
        rows: the replay, a row for each block and stream, with predicted `seconds` and `plain_s`, means of the repeats.
        by_repeat: predicted speedup of each block by repeat, [repeats, C].
        sums: over prompts.
    """

    rows: pd.DataFrame
    by_repeat: np.ndarray
    sums: Sums

    @cached_property
    def tokens(self) -> np.ndarray:
        """Tokens per call, [1 + B, C]."""
        return self.sums.values["tokens"] / self.sums.values["rounds"]

    @cached_property
    def speedup(self) -> np.ndarray:
        """[1 + B, C]; NaN for blocks that could not be timed."""
        return self.sums.values["plain_s"] / self.sums.values["seconds"]

    @cached_property
    def blocks(self) -> pd.DataFrame:
        """One row per block: k, w, tokens, tokens_low, tokens_high, speedup, speedup_low, speedup_high, deviation
        (standard deviation over repeats; NaN for one), nodes (mean of a draft).
        """
        cells = self.sums.cells.copy()
        for name, values in (("tokens", self.tokens), ("speedup", self.speedup)):
            low, high = self.sums.interval(values)
            cells[name], cells[f"{name}_low"], cells[f"{name}_high"] = values[0], low, high
        repeats = len(self.by_repeat)
        cells["deviation"] = np.std(self.by_repeat, axis=0, ddof=1) if repeats > 1 else np.nan
        cells["nodes"] = self.sums.values["nodes"][0] / self.sums.values["rounds"][0]
        return cells

    def best(self, name: str) -> Block:
        """The block with the largest `tokens` or `speedup`; of equal ones the smallest."""
        row = self.blocks.loc[self.blocks[name].idxmax()]
        return int(row["k"]), int(row["w"])

    def has(self, block: Block) -> bool:
        return bool(((self.sums.cells["k"] == block[0]) & (self.sums.cells["w"] == block[1])).any())

    def value(self, name: str, block: Block) -> float:
        return float(self.blocks.loc[self._number(block), name])

    def lead(self, name: str, block: Block, other: Block) -> Lead:
        """Of `block` over `other`."""
        values = getattr(self, name)
        difference = values[:, [self._number(block)]] - values[:, [self._number(other)]]
        low, high = self.sums.interval(difference)
        return Lead(float(difference[0, 0]), float(low[0]), float(high[0]))

    def steadiness(self, name: str, block: Block) -> float:
        """Share of replicates in which `block` is the best, NaN from one prompt: low where many are nearly as good."""
        values = getattr(self, name)[1:]
        values = values[np.isfinite(values).any(axis=1)]
        return float(np.mean(np.nanargmax(values, axis=1) == self._number(block))) if len(values) else float("nan")

    def _number(self, block: Block) -> int:
        cells = self.sums.cells
        return int(np.flatnonzero((cells["k"] == block[0]) & (cells["w"] == block[1]))[0])


def grid(replay: pd.DataFrame, block_times: pd.DataFrame, host_times: pd.DataFrame, replicates: int, seed: int) -> Grid:
    """From the study's tables."""
    seconds, plain = stream_seconds(replay, repeats_of(block_times, host_times))
    rows = replay.assign(seconds=seconds.mean(axis=0), plain_s=plain.mean(axis=0))
    untimed = rows["seconds"].isna().groupby([rows["k"], rows["w"]]).transform("any")
    rows.loc[untimed, "seconds"] = np.nan  # a speedup over some of the texts would not compare with the others
    sums = prompt_sums(rows, ["k", "w"], ["tokens", "rounds", "nodes", "seconds", "plain_s"], replicates, seed)
    by_repeat = []
    for mine, base in zip(seconds, plain, strict=True):
        totals = replay[["k", "w"]].assign(mine=mine, base=base).groupby(["k", "w"]).agg(_whole)
        by_repeat.append((totals["base"] / totals["mine"]).to_numpy())
    return Grid(rows, np.stack(by_repeat), sums)


def _whole(values: pd.Series) -> float:
    """The sum; NaN if a part is."""
    return float(values.sum(skipna=False))


def live_check(rows: pd.DataFrame, live: pd.DataFrame) -> pd.DataFrame:
    """Live runs beside the prediction for the same texts, one row per block: k, w, streams, tokens_predicted,
    tokens_measured (per call), same_rounds (streams whose every live run took the rounds of the replay), identical
    (share of runs that wrote the replayed text), speedup_predicted, speedup_measured, deviation (standard deviation
    over repeats; NaN for one), error (predicted over measured, less 1).

    rows: of a `Grid`. live: of the study.
    """
    plain = live[live["w"] == 0]
    base = plain.groupby("repeat")["seconds"].sum()
    found = []
    for (k, w), runs in live[live["w"] > 0].groupby(["k", "w"]):
        mine = rows[(rows["k"] == k) & (rows["w"] == w)].set_index("stream").loc[sorted(set(runs["stream"]))]
        by_repeat = base / runs.groupby("repeat")["seconds"].sum()
        measured = float(base.sum() / runs["seconds"].sum())
        predicted = float(mine["plain_s"].sum() / mine["seconds"].sum(skipna=False))
        replayed = mine["rounds"]
        same = runs["rounds"].to_numpy() == replayed.loc[runs["stream"]].to_numpy()
        found.append(
            {
                "k": int(k),
                "w": int(w),
                "streams": len(mine),
                "tokens_predicted": mine["tokens"].sum() / replayed.sum(),
                "tokens_measured": runs["tokens"].sum() / runs["rounds"].sum(),
                "same_rounds": int(pd.Series(same).groupby(runs["stream"].to_numpy()).all().sum()),
                "identical": float(runs["identical"].mean()),
                "speedup_predicted": predicted,
                "speedup_measured": measured,
                "deviation": float(by_repeat.std(ddof=1)) if len(by_repeat) > 1 else float("nan"),
                "error": predicted / measured - 1,
            }
        )
    return pd.DataFrame(found)


def best_by_category(whole: Grid, least: int) -> pd.DataFrame:
    """The fastest block and the one with most tokens per call of every category with at least `least` prompts; empty
    where there are not two such categories.
    """
    rows = []
    for category, part in whole.rows.groupby("category"):
        if part["prompt"].nunique() < least:
            continue
        totals = part.groupby(["k", "w"])[["tokens", "rounds", "seconds", "plain_s"]].sum()
        tokens, speed = totals["tokens"] / totals["rounds"], totals["plain_s"] / totals["seconds"].replace(0.0, np.nan)
        fastest = speed.idxmax()
        rows.append(
            {
                "category": category,
                "prompts": part["prompt"].nunique(),
                "fastest block": str(fastest),
                "speedup": f"{speed.max():.2f}",
                "its tokens per call": f"{tokens[fastest]:.2f}",
                "most tokens per call": f"{tokens.max():.2f} at {tokens.idxmax()}",
            }
        )
    return pd.DataFrame(rows) if len(rows) > 1 else pd.DataFrame()
