"""Ablations of grounded heads: tokens per round of each variant, and paired differences to the plain ones.

Reads the rows of `results/heads_ablation.json`, which hold counts of every prompt, so that each figure is made anew.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from specdec.errors import UsageError

from ..intervals import Columns, Interval, bootstrap

RESULT = Path(__file__).parents[1] / "results" / "heads_ablation.json"
COMMAND = "python -m pytest -n 0 -m benchmark tests/benchmarks/test_heads_ablation.py"
GROUNDED, INDEPENDENT = "grounded", "medusa"
TREE, CHAIN = "tree", "chain"

Row = Mapping[str, Any]


def load_ablation(path: Path | str = RESULT) -> list[dict[str, Any]]:
    """The rows of a result file, one for each variant, structure and depth.

    Raises:
        UsageError: no such file, or another one.
    """
    try:
        rows = json.loads(Path(path).read_text(encoding="utf-8"))["figures"]
        for row in rows:
            _counts(row)
    except FileNotFoundError:
        raise UsageError(f"The ablations {path} do not exist: `{COMMAND}` makes them.") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{path} holds no ablations of heads: `{COMMAND}` makes them.") from None
    return list(rows)


def _counts(row: Row, suffix: str = "") -> pd.DataFrame:
    """Tokens and rounds, and of each head the asked tokens and the hits, by prompt."""
    counts = row["by_prompt"]
    columns = {"tokens": counts["tokens"], "rounds": counts["rounds"]}
    for name in ("asked", "hits"):
        columns |= {f"{name}_{head}": values for head, values in enumerate(zip(*counts[name], strict=True), 1)}
    return pd.DataFrame(columns, index=counts["prompts"]).astype(float).add_suffix(suffix)


def deepest(rows: Sequence[Row], variant: str, structure: str) -> Row | None:
    """The row of a variant with the most heads in use; None where it was not measured."""
    found = [row for row in rows if row["variant"] == variant and row["structure"] == structure]
    return max(found, key=lambda row: int(row["depth"]), default=None)


def both(first: Row, second: Row) -> pd.DataFrame:
    """Counts of two rows on the prompts that both have, the columns suffixed `_first` and `_second`.

    Raises:
        UsageError: they share no prompt.
    """
    table = _counts(first, "_first").join(_counts(second, "_second"), how="inner")
    if table.empty:
        raise UsageError(
            f"Ablations {first['variant']} and {second['variant']} have no prompt in common: `{COMMAND}` makes both."
        )
    return table


def _rate(sums: Columns, suffix: str) -> np.ndarray:
    return sums[f"tokens{suffix}"] / sums[f"rounds{suffix}"]


def tokens_per_round(row: Row, replicates: int = 10_000, seed: int = 0) -> Interval:
    """Of one row, with its prompt-bootstrap interval."""
    return bootstrap(_counts(row), lambda sums: {"rate": _rate(sums, "")}, replicates, seed)["rate"]


def difference(
    first: Row, second: Row, replicates: int = 10_000, seed: int = 0, prompts: Sequence[str] | None = None
) -> Interval:
    """Tokens per round of the first, less the second's, the same prompts resampled for both.

    Args:
        prompts: of those that both have; None is all.
    """

    def values(sums: Columns) -> Mapping[str, np.ndarray]:
        return {"difference": _rate(sums, "_first") - _rate(sums, "_second")}

    table = both(first, second)
    kept = table if prompts is None else table[table.index.isin(prompts)]
    return bootstrap(kept, values, replicates, seed)["difference"]


def compared(rows: Sequence[Row], replicates: int = 10_000, seed: int = 0) -> pd.DataFrame:
    """A line for each row: tokens per round, and what it has beyond the grounded heads of that structure at full depth.

    Columns: variant, structure, depth, prompts, tokens_per_round, ci_low, ci_high, difference, difference_low,
    difference_high; the last three NaN without grounded heads, and theirs 0.
    """
    lines = []
    for row in rows:
        rate = tokens_per_round(row, replicates, seed)
        line = {name: row[name] for name in ("variant", "structure", "depth")} | {
            "prompts": rate.prompts,
            "tokens_per_round": rate.estimate,
            "ci_low": rate.low,
            "ci_high": rate.high,
        }
        plain = deepest(rows, GROUNDED, row["structure"])
        beyond = Interval(np.nan, np.nan, np.nan, rate.level, 0)
        if plain is not None:
            beyond = difference(row, plain, replicates, seed)
        lines.append(
            line | {"difference": beyond.estimate, "difference_low": beyond.low, "difference_high": beyond.high}
        )
    return pd.DataFrame(lines)


@dataclass(frozen=True)
class Steepness:
    """How the accuracy of two sets of heads falls with the position that a head predicts.

    Attributes:
        heads: a line for each head k: `first`, `second` and `difference`, Intervals of the share of the target's own
            tokens that were its first choice, given the true ones before.
        first, second: accuracy of the last head over that of the first: 1 does not fall at all.
        difference: of these two, paired.
    """

    heads: pd.DataFrame
    first: Interval
    second: Interval
    difference: Interval


def steepness(first: Row, second: Row, replicates: int = 10_000, seed: int = 0) -> Steepness:
    """Of two rows with as many heads, on the same prompts."""
    table = both(first, second)
    heads = range(1, min(int(row["heads"]["count"]) for row in (first, second)) + 1)

    def values(sums: Columns) -> Mapping[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for side in ("first", "second"):
            for head in heads:
                found[f"{side}_{head}"] = sums[f"hits_{head}_{side}"] / sums[f"asked_{head}_{side}"]
            found[side] = found[f"{side}_{heads[-1]}"] / found[f"{side}_{heads[0]}"]
        found |= {f"difference_{head}": found[f"first_{head}"] - found[f"second_{head}"] for head in heads}
        return found | {"difference": found["first"] - found["second"]}

    intervals = bootstrap(table, values, replicates, seed)
    lines = [
        {"head": head} | {side: intervals[f"{side}_{head}"] for side in ("first", "second", "difference")}
        for head in heads
    ]
    return Steepness(pd.DataFrame(lines), *(intervals[name] for name in ("first", "second", "difference")))
