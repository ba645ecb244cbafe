"""Numbers of replayed strategies: sums by prompt, resampled together for all strategies, so that differences between
them are paired. No torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..intervals import percentile_bounds, resampled_sums

LEVEL = 0.95


@dataclass(frozen=True)
class Sums:
    """Sums over prompts, of the data and of bootstrap replicates.

    Attributes:
        cells: one row per strategy, its keys; C of them.
        values: by column, [1 + B, C]: the data's, then the replicates'.
        prompts: P.
    """

    cells: pd.DataFrame
    values: dict[str, np.ndarray]
    prompts: int

    def interval(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Percentile bounds [C] of a statistic [1 + B, C]; NaN from a single prompt."""
        if self.prompts < 2:
            return np.full(values.shape[1], np.nan), np.full(values.shape[1], np.nan)
        bounds = [percentile_bounds(column, LEVEL) for column in values[1:].T]
        return np.array([low for low, _ in bounds]), np.array([high for _, high in bounds])


def prompt_sums(table: pd.DataFrame, keys: Sequence[str], columns: Sequence[str], replicates: int, seed: int) -> Sums:
    """
    Args:
        table: rows of any number of streams per strategy (`keys`) and prompt; every strategy has every prompt. A value
            that is missing (NaN) should be so in all rows of a strategy.
    """
    wide = table.groupby(["prompt", *keys])[list(columns)].sum(min_count=1)
    prompts = wide.index.get_level_values("prompt").unique()
    cells = wide.index.droplevel("prompt").unique().to_frame(index=False)
    sums = wide.to_numpy(dtype=float).reshape(len(prompts), -1)  # [P, C x columns]
    drawn = resampled_sums(sums, replicates, seed) if len(prompts) > 1 else np.empty((0, sums.shape[1]))
    both = np.concatenate([sums.sum(axis=0, keepdims=True), drawn]).reshape(1 + len(drawn), len(cells), len(columns))
    return Sums(cells, {column: both[..., index] for index, column in enumerate(columns)}, len(prompts))


def tokens_per_call(table: pd.DataFrame, keys: Sequence[str], replicates: int, seed: int) -> pd.DataFrame:
    """Committed tokens per target call by strategy: keys, value, low, high (prompt bootstrap), prompts."""
    sums = prompt_sums(table, keys, ["tokens", "rounds"], replicates, seed)
    values = sums.values["tokens"] / sums.values["rounds"]
    low, high = sums.interval(values)
    return sums.cells.assign(value=values[0], low=low, high=high, prompts=sums.prompts)


def bracket(low: float, high: float, digits: int = 2) -> str:
    """Such as " [1.20, 1.31]"; nothing where there is no interval."""
    return f" [{low:.{digits}f}, {high:.{digits}f}]" if np.isfinite(low) and np.isfinite(high) else ""


# Sentences that studies of replayed text have in common ---------------------------------------------

_OWN_KIND = ("stdlib_code", "stdlib_docs", "recorded")  # what the pocket target was made for, or what another wrote


def origin(table: pd.DataFrame, skipped: pd.DataFrame, title: str, prompts: str) -> tuple[str, ...]:
    """What the texts are, and which prompts are missing.

    Args:
        table: rows of a replay, of any number of strategies.
        title: of the run, which says when its target is the pocket one.
    """
    texts = table.drop_duplicates("stream")
    sentence = (
        f"Replayed: {len(texts):,} greedy text{'s' * (len(texts) != 1)} of {texts['prompt'].nunique():,} prompts of "
        f"{prompts}, {int(texts['tokens'].sum()):,} tokens; intervals are 95% prompt-bootstrap intervals."
    )
    return (sentence, *caveats(skipped, title, prompts))


def caveats(skipped: pd.DataFrame, title: str, prompts: str) -> tuple[str, ...]:
    """What to bear in mind about the prompts, and which of them are missing; arguments as of `origin`."""
    sentences = []
    if (" on pocket" in title or title.startswith("pocket")) and prompts not in _OWN_KIND:
        sentences.append(
            f"A protocol check: the pocket target is a small code model, and what it writes after prompts of {prompts} "
            "says little about models that are made for them."
        )
    if len(skipped):
        listed = "; ".join(
            f"{reason}: " + ", ".join(f"{row.count_} {row.category}" for row in rows.itertuples())
            for reason, rows in skipped.rename(columns={"count": "count_"}).groupby("reason", sort=True)
        )
        sentences.append(f"Prompts left out, by reason and category: {listed}.")
    return tuple(sentences)
