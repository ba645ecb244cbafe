"""Reads committed results, and makes rates and their differences anew from the sums by prompt that they hold."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from specdec.errors import UsageError

from ..intervals import ANY, Interval, Range, interval_of

RESULTS = Path(__file__).parents[1] / "results"
BENCHMARK = "python -m pytest -n 0 -m benchmark tests/benchmarks/{}.py"  # the command that makes a file of results

Measured = Mapping[str, Any]  # The figures that a benchmark writes about one thing that it measured
T = TypeVar("T")


def load_figures(path: Path | str, command: str, name: str, kind: str, read: Callable[[list[Measured]], T]) -> T:
    """Return what `read` makes of the entries (`figures`) of a result file. UsageError if there is no such file, or
    `read` lacks something in it.

    command: makes the file; name, kind: the results in words, for messages: "accuracies", "accuracies of heads".
    """
    try:
        return read(list(json.loads(Path(path).read_text(encoding="utf-8"))["figures"]))
    except FileNotFoundError:
        raise UsageError(f"The {name} {path} do not exist: `{command}` makes them.") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{path} holds no {kind}: `{command}` makes them.") from None


def rate(table: pd.DataFrame) -> Interval:
    """Return tokens per round from the sums `tokens` and `rounds` of each prompt."""
    return interval_of(table, lambda sums: sums["tokens"] / sums["rounds"], Range(low=1.0))


def paired(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Return the sums of two tables on the prompts that both have; the second's columns end in `_over`."""
    return first.join(second.add_suffix("_over"), how="inner")


def rate_difference(table: pd.DataFrame) -> Interval:
    """Return tokens per round of the first less those of the second of two `paired` tables."""
    return interval_of(
        table, lambda sums: sums["tokens"] / sums["rounds"] - sums["tokens_over"] / sums["rounds_over"], ANY
    )
