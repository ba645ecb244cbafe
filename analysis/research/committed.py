"""Reads committed results, and makes rates, their ratios and differences anew from the sums by prompt that they hold.

Above all those of `tests/benchmarks/test_paper_claims.py`: drafter and baseline of a run took turns on the same
prompts; figures of different runs are paired by prompt where they count tokens or probabilities, and never where they
are seconds.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import nan
from pathlib import Path
from typing import Any

import pandas as pd

from specdec.errors import UsageError

from ..intervals import ANY, SHARE, Interval, Range, interval_of, with_replicates

RESULTS = Path(__file__).parents[1] / "results"
BENCHMARK = "python -m pytest -n 0 -m benchmark tests/benchmarks/{}.py"  # the command that makes a file of results
CLAIMS = RESULTS / "paper_claims.json"
REPLICATES = 10_000

Measured = Mapping[str, Any]  # The figures that a benchmark writes about one thing that it measured


@contextmanager
def load_figures(path: Path | str, benchmark: str, name: str, kind: str) -> Iterator[list[Measured]]:
    """Give the entries (`figures`) of the result file of a benchmark. UsageError if there is no such file, or they lack
    what is asked of them within; name, kind: what they are, for messages: "accuracies", "accuracies of heads".
    """
    command = BENCHMARK.format(benchmark)
    try:
        yield list(json.loads(Path(path).read_text(encoding="utf-8"))["figures"])
    except FileNotFoundError:
        raise UsageError(f"The {name} {path} do not exist: `{command}` makes them.") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{path} holds no {kind}: `{command}` makes them.") from None


def load_results(path: Path | str = CLAIMS) -> dict[str, Measured]:
    """Return the entries on the papers' claims, each for one run, by its name. UsageError as of `load_figures`."""
    with load_figures(path, "test_paper_claims", "measurements", "measurements of claims") as entries:
        return {entry["run"]: entry for entry in entries}


def rate(table: pd.DataFrame) -> Interval:
    """Return tokens per round from the sums `tokens` and `rounds` of each prompt."""
    return interval_of(table, lambda sums: sums["tokens"] / sums["rounds"], Range(low=1.0))


def paired(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """Return the sums of two tables on the prompts that both have; the second's columns end in `_over`."""
    return first.join(second.add_suffix("_over"), how="inner")


def rate_difference(table: pd.DataFrame, over: str = "tokens", under: str = "rounds", within: Range = ANY) -> Interval:
    """Return one sum over another, tokens per round, of the first less those of the second of two `paired` tables."""
    return interval_of(
        table, lambda sums: sums[over] / sums[under] - sums[f"{over}_over"] / sums[f"{under}_over"], within
    )


def arm(run: Measured, at: str) -> pd.DataFrame:
    """Return by prompt the tokens, rounds and seconds at `gamma`, and those of the baseline (`baseline_`)."""
    own, base = (pd.DataFrame(part, index=run["prompts"]) for part in (run["arms"][at], run["baseline"]))
    return own.join(base.add_prefix("baseline_")).astype(float)


def tokens_per_round(run: Measured, at: str) -> Interval:
    return rate(arm(run, at))


def speedup(run: Measured, at: str) -> Interval:
    """Return the baseline's decode seconds per token over the drafter's, prefill apart."""
    return interval_of(
        arm(run, at), lambda sums: sums["baseline_seconds"] / sums["baseline_tokens"] * sums["tokens"] / sums["seconds"]
    )


def arm_ratio(run: Measured, at: str, over: str) -> Interval:
    """Return how much faster one arm of a session decodes than another: seconds per token of the other over its own,
    which is also the ratio of their speedups.
    """
    return interval_of(
        paired(arm(run, at), arm(run, over)),
        lambda sums: sums["seconds_over"] / sums["tokens_over"] * sums["tokens"] / sums["seconds"],
    )


def verify_ratio(run: Measured, at: str) -> Interval:
    """Return the time of a call on a whole draft over that of the baseline's call on one token."""
    return interval_of(
        arm(run, at), lambda sums: sums["verify"] / sums["rounds"] / (sums["baseline_verify"] / sums["baseline_rounds"])
    )


def more_tokens_per_round(run: Measured, at: str, other: Measured, other_at: str) -> Interval:
    """Return the tokens per round of one arm less those of another, paired by the prompts that both have."""
    return rate_difference(paired(arm(run, at), arm(other, other_at)))


def tokens_per_round_elsewhere(run: Measured, at: str, other: Measured, other_at: str) -> Interval:
    """Return the tokens per round of one arm less those of another on other prompts, each resampled for itself."""
    counts = [table[["tokens", "rounds"]].to_numpy() for table in (arm(run, at), arm(other, other_at))]
    drawn = [with_replicates(table, REPLICATES, seed) for seed, table in enumerate(counts)]
    values = [sums[:, 0] / sums[:, 1] for sums in drawn]
    return Interval.of_replicates(values[0] - values[1], min(map(len, counts)), ANY)


def alpha(run: Measured) -> Interval:
    """Return the mean of sum min(p, q) over the positions of the target's own text that had a proposal."""
    return interval_of(_alpha(run), lambda sums: sums["numerator"] / sums["denominator"], SHARE)


def alpha_difference(run: Measured, other: Measured) -> Interval:
    """Return the alpha of one run less that of another, paired by the prompts that both have."""
    return rate_difference(paired(_alpha(run), _alpha(other)), "numerator", "denominator", Range(-1.0, 1.0))


def metric(run: Measured, name: str) -> Interval:
    """Return a logged metric with its bounds, NaN for what was not logged."""
    return Interval.from_metrics({key: nan if value is None else value for key, value in run["metrics"].items()}, name)


def _alpha(run: Measured) -> pd.DataFrame:
    return pd.DataFrame(run["alpha"], index=run["prompts"]).astype(float)
