"""Reads what `tests/benchmarks/test_paper_claims.py` measured: sums by prompt, and intervals made of them anew.

Drafter and baseline of a run took turns on the same prompts; figures of different runs are paired by prompt where they
count tokens or probabilities, and never where they are seconds.
"""

from math import nan
from pathlib import Path

import pandas as pd

from ..intervals import ANY, SHARE, Interval, Range, interval_of, with_replicates
from .committed import BENCHMARK, RESULTS, Measured, load_figures, paired, rate, rate_difference

RESULT = RESULTS / "paper_claims.json"
COMMAND = BENCHMARK.format("test_paper_claims")
REPLICATES = 10_000
LOGGED = (  # metrics of a run that are kept as they were logged
    *("cost/c", "cost/c_ops", "lossless/identical", "lossless/divergences", "lossless/unexplained", "lossless/tv"),
    *("repetition/share", "quality/log_likelihood", "quality/baseline_log_likelihood"),
)


def load_results(path: Path | str = RESULT) -> dict[str, Measured]:
    """Return the benchmark's entries, each for one run, by its name. UsageError as of `load_figures`."""
    return load_figures(
        path, COMMAND, "measurements", "measurements of claims", lambda runs: {run["run"]: run for run in runs}
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
    tables = [arm(run, at), arm(other, other_at)]
    drawn = [
        with_replicates(table[["tokens", "rounds"]].to_numpy(), REPLICATES, seed) for seed, table in enumerate(tables)
    ]
    values = [sums[:, 0] / sums[:, 1] for sums in drawn]
    return Interval.of_replicates(values[0] - values[1], min(len(table) for table in tables), ANY)


def alpha(run: Measured) -> Interval:
    """Return the mean of sum min(p, q) over the positions of the target's own text that had a proposal."""
    return interval_of(_alpha(run), lambda sums: sums["numerator"] / sums["denominator"], SHARE)


def alpha_difference(run: Measured, other: Measured) -> Interval:
    """Return the alpha of one run less that of another, paired by the prompts that both have."""
    return interval_of(
        paired(_alpha(run), _alpha(other)),
        lambda sums: sums["numerator"] / sums["denominator"] - sums["numerator_over"] / sums["denominator_over"],
        Range(-1.0, 1.0),
    )


def metric(run: Measured, name: str) -> Interval:
    """Return a logged metric with its bounds, NaN for what was not logged."""
    return Interval.from_metrics({key: nan if value is None else value for key, value in run["metrics"].items()}, name)


def _alpha(run: Measured) -> pd.DataFrame:
    return pd.DataFrame(run["alpha"], index=run["prompts"]).astype(float)
