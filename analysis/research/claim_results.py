"""Reads what `tests/benchmarks/test_paper_claims.py` measured: sums by prompt, and intervals made of them anew.

Drafter and baseline of a run took turns on the same prompts; figures of different runs are paired by prompt where they
count tokens or probabilities, and never where they are seconds.
"""

import json
from collections.abc import Mapping
from math import nan
from pathlib import Path
from typing import Any

import pandas as pd

from specdec.errors import UsageError

from ..intervals import Columns, Interval, bootstrap, bootstrap_bounds, resampled_sums

RESULT = Path(__file__).parents[1] / "results" / "paper_claims.json"
COMMAND = "python -m pytest -n 0 -m benchmark tests/benchmarks/test_paper_claims.py"
REPLICATES, LEVEL = 10_000, 0.95
LOGGED = (  # metrics of a run that are kept as they were logged
    *("cost/c", "cost/c_ops", "lossless/identical", "lossless/divergences", "lossless/unexplained", "lossless/tv"),
    *("repetition/share", "quality/log_likelihood", "quality/baseline_log_likelihood"),
)

Measured = Mapping[str, Any]
"""The benchmark's entry for one run."""


def load_results(path: Path | str = RESULT) -> dict[str, Measured]:
    """Return the benchmark's entries by the name of the run.

    Raises:
        UsageError: there is no such file, or it holds something else.
    """
    try:
        return {each["run"]: each for each in json.loads(Path(path).read_text(encoding="utf-8"))["figures"]}
    except FileNotFoundError:
        raise UsageError(f"The measurements {path} do not exist: `{COMMAND}` makes them.") from None
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(f"{path} holds no measurements of claims: `{COMMAND}` makes them.") from None


def arm(run: Measured, at: str) -> pd.DataFrame:
    """Return by prompt the tokens, rounds and seconds at `gamma`, and those of the baseline (`baseline_`)."""
    own, base = (pd.DataFrame(part, index=run["prompts"]) for part in (run["arms"][at], run["baseline"]))
    return own.join(base.add_prefix("baseline_")).astype(float)


def tokens_per_round(run: Measured, at: str) -> Interval:
    return bootstrap(arm(run, at), lambda sums: {"": sums["tokens"] / sums["rounds"]})[""]


def speedup(run: Measured, at: str) -> Interval:
    """Return the baseline's decode seconds per token over the drafter's, prefill apart."""
    return bootstrap(arm(run, at), lambda sums: {"": _speedup(sums)})[""]


def speedup_ratio(run: Measured, at: str, over: str) -> Interval:
    """Return the speedup at one gamma over that at another, of one run."""
    table = arm(run, at).join(arm(run, over).add_suffix("_over"))
    return bootstrap(table, lambda sums: {"": _speedup(sums) / _speedup(sums, "_over")})[""]


def arm_ratio(run: Measured, at: str, over: str) -> Interval:
    """Return how much faster one arm of a session decodes than another: seconds per token of the other over its own."""
    table = arm(run, at).join(arm(run, over).add_suffix("_over"))

    def value(sums: Columns) -> dict[str, Any]:
        other = sums["seconds_over"] / sums["tokens_over"]
        return {"": other * sums["tokens"] / sums["seconds"]}

    return bootstrap(table, value)[""]


def verify_ratio(run: Measured, at: str) -> Interval:
    """Return the time of a call on a whole draft over that of the baseline's call on one token."""

    def value(sums: Columns) -> dict[str, Any]:
        base = sums["baseline_verify"] / sums["baseline_rounds"]
        return {"": sums["verify"] / sums["rounds"] / base}

    return bootstrap(arm(run, at), value)[""]


def more_tokens_per_round(run: Measured, at: str, other: Measured, other_at: str) -> Interval:
    """Return the tokens per round of one arm less those of another, paired by the prompts that both have."""
    table = arm(run, at).join(arm(other, other_at).add_suffix("_over"), how="inner")
    return bootstrap(
        table, lambda sums: {"": sums["tokens"] / sums["rounds"] - sums["tokens_over"] / sums["rounds_over"]}
    )[""]


def tokens_per_round_elsewhere(run: Measured, at: str, other: Measured, other_at: str) -> Interval:
    """Return the tokens per round of one arm less those of another on other prompts, each resampled for itself."""
    tables = [arm(run, at), arm(other, other_at)]
    drawn = [
        resampled_sums(table[["tokens", "rounds"]].to_numpy(), REPLICATES, seed) for seed, table in enumerate(tables)
    ]
    values = [sums[:, 0] / sums[:, 1] for sums in drawn]
    found = [table["tokens"].sum() / table["rounds"].sum() for table in tables]
    difference, prompts = float(found[0] - found[1]), min(len(table) for table in tables)
    bounds = bootstrap_bounds(difference, values[0] - values[1], prompts, LEVEL)
    return Interval(difference, *bounds, LEVEL, prompts)


def alpha(run: Measured) -> Interval:
    """Return the mean of sum min(p, q) over the positions of the target's own text that had a proposal."""
    table = _alpha(run)
    return bootstrap(table, lambda sums: {"": sums["numerator"] / sums["denominator"]}, shares=("",))[""]


def alpha_difference(run: Measured, other: Measured) -> Interval:
    """Return the alpha of one run less that of another, paired by the prompts that both have."""
    table = _alpha(run).join(_alpha(other).add_suffix("_over"), how="inner")
    return bootstrap(
        table,
        lambda sums: {"": sums["numerator"] / sums["denominator"] - sums["numerator_over"] / sums["denominator_over"]},
    )[""]


def metric(run: Measured, name: str) -> Interval:
    """Return a logged metric with its bounds, NaN for what was not logged."""
    return Interval.from_metrics({key: nan if value is None else value for key, value in run["metrics"].items()}, name)


def _alpha(run: Measured) -> pd.DataFrame:
    return pd.DataFrame(run["alpha"], index=run["prompts"]).astype(float)


def _speedup(sums: Columns, end: str = "") -> Any:
    base = sums[f"baseline_seconds{end}"] / sums[f"baseline_tokens{end}"]
    return base * sums[f"tokens{end}"] / sums[f"seconds{end}"]
