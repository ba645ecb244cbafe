"""The numbers of study `ablation`: distributions of accepted lengths, ranks and rows by strategy, with prompt-bootstrap
intervals. No torch.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ..intervals import percentile_bounds, resampled_sums
from .replayed import LEVEL

NONE = ""  # the strategy of rounds that accepted nothing


def strategies(histograms: pd.DataFrame) -> list[str]:
    """Those that had rows, the one with most first."""
    rows = histograms[histograms["histogram"] == "allotment"]
    total = (rows["value"] * rows["count"]).groupby(rows["strategy"]).sum()
    return [str(name) for name in total.sort_values(ascending=False, kind="stable").index]


def distribution(
    histograms: pd.DataFrame, replay: pd.DataFrame, name: str, strategy: str, replicates: int, seed: int
) -> pd.DataFrame:
    """Shares of the values of histogram `name` among the rounds of `strategy`: value, count, share,
    share_low, share_high.

    Of "accepted" and "rank", its rounds are those that it won; of "allotment" all rounds, those in which it had no row
    included.
    """
    mine = histograms[(histograms["histogram"] == name) & (histograms["strategy"] == strategy)]
    wide = mine.pivot_table(index="prompt", columns="value", values="count", aggfunc="sum", fill_value=0)
    wide = wide.reindex(sorted(replay["prompt"].unique()), fill_value=0)
    if name == "allotment":
        rounds = replay.groupby("prompt")["rounds"].sum()
        wide[0] = wide.get(0, 0) + rounds.reindex(wide.index) - wide.sum(axis=1)
    wide = wide[sorted(wide.columns)]
    shares, low, high = _shares(wide.to_numpy(dtype=float), replicates, seed)
    return pd.DataFrame(
        {
            "value": wide.columns.to_numpy(dtype=int),
            "count": wide.sum(axis=0).to_numpy(dtype=int),
            "share": shares,
            "share_low": low,
            "share_high": high,
        }
    )


def _shares(counts: np.ndarray, replicates: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the columns of `counts` [P, values] in their sum over prompts, with bounds."""
    total = counts.sum(axis=0)
    missing = np.full(counts.shape[1], np.nan)
    if not total.sum():
        return missing, missing, missing
    shares = total / total.sum()
    if len(counts) < 2:
        return shares, missing, missing
    drawn = resampled_sums(counts, replicates, seed)
    with np.errstate(invalid="ignore"):
        bounds = [percentile_bounds(column, LEVEL) for column in (drawn / drawn.sum(axis=1, keepdims=True)).T]
    return shares, np.array([low for low, _ in bounds]), np.array([high for _, high in bounds])


def contributions(
    histograms: pd.DataFrame, replay: pd.DataFrame, names: Sequence[str], replicates: int, seed: int
) -> pd.DataFrame:
    """By strategy: rows (offered, a round), wins (share of rounds in which its row was accepted), of_rows and of_wins
    (its shares of all rows and of all won rounds), per_row (won rounds per row offered), tokens (accepted, its share of
    all accepted), length (mean accepted in the rounds it won); each with _low and _high.
    """
    per_prompt = pd.DataFrame({"rounds": replay.groupby("prompt")["rounds"].sum()})
    for index, name in enumerate(names):
        mine = histograms[histograms["strategy"] == name]
        for column, histogram, weighted in (("rows", "allotment", True), ("wins", "accepted", False),
                                            ("tokens", "accepted", True)):  # fmt: skip
            part = mine[mine["histogram"] == histogram]
            values = part["count"] * (part["value"] if weighted else 1)
            per_prompt[f"{column}{index}"] = (
                values.groupby(part["prompt"]).sum().reindex(per_prompt.index, fill_value=0)
            )
    sums = per_prompt.to_numpy(dtype=float)
    drawn = resampled_sums(sums, replicates, seed) if len(sums) > 1 else np.empty((0, sums.shape[1]))
    both = dict(zip(per_prompt.columns, np.concatenate([sums.sum(axis=0, keepdims=True), drawn]).T, strict=True))
    total = {kind: sum(both[f"{kind}{index}"] for index in range(len(names))) for kind in ("rows", "wins", "tokens")}
    found = []
    for index, name in enumerate(names):
        rows, wins, tokens = (both[f"{kind}{index}"] for kind in ("rows", "wins", "tokens"))
        with np.errstate(divide="ignore", invalid="ignore"):
            values = {
                "rows": rows / both["rounds"],
                "wins": wins / both["rounds"],
                "of_rows": rows / total["rows"],
                "of_wins": wins / total["wins"],
                "per_row": wins / rows,
                "tokens": tokens / total["tokens"],
                "length": tokens / wins,
            }
        row: dict[str, object] = {"strategy": name}
        for key, value in values.items():
            low, high = percentile_bounds(value[1:], LEVEL) if len(sums) > 1 else (np.nan, np.nan)
            row |= {key: float(value[0]), f"{key}_low": low, f"{key}_high": high}
        found.append(row)
    return pd.DataFrame(found)
