"""Measures grounded heads, independent heads and plain decoding in one session, for two sets of prompts, which
`analysis/research/grounded_gain.py` and the table of claims read; five minutes of one quiet core.

The questions of MT-Bench are no part of the repository: without the shared data their part is skipped. The file keeps
what was found on the other set.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fixtures.measured_commands import finished, provenance
from fixtures.measuring import kept_figures, write_lines

from specdec.analysis.findings.run_sections import by_category
from specdec.analysis.intervals import Interval
from specdec.analysis.read.runs import Run
from specdec.analysis.research import grounded_gain
from specdec.analysis.rounds import prompt_sums
from specdec.config import BASELINE

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]

SETS = ("mt_bench", "stdlib_code")  # in the order of the file
TOKENS = 24  # of an answer; a question of MT-Bench has two
OTHER = "medusa"
QUANTITIES = {  # figure of the file: metric of a drafter
    "tokens_per_s": "throughput/tokens_per_s",
    "tokens_per_round": "tokens_per_round",
    "speedup": "speedup",
}
PAIRED = ("speedup.ratio", "tokens_per_round.ratio", "tokens_per_round.difference")


def figures(run: Run) -> list[dict[str, Any]]:
    """Return a line for each figure: the pair over all prompts, and each method over all and by category."""

    def line(method: str, category: str, figure: str, value: Interval) -> dict[str, Any]:
        bounds = {"value": round(value.estimate, 4), "low": round(value.low, 4), "high": round(value.high, 4)}
        return {"method": method, "category": category, "figure": figure} | bounds

    pair = f"grounded against {OTHER}"
    found = [line(pair, "all", name, run.interval(f"drafter/{OTHER}/{name}")) for name in PAIRED]
    methods: dict[str, Run] = {each.method or "grounded": each for each in run.drafters}
    grouped = {name: by_category(each.metrics) for name, each in methods.items()}
    categories = sorted(grouped["grounded"]) if len(grouped["grounded"]) <= 8 else []
    for category in ("all", *categories):
        values: dict[str, Mapping[str, float]] = {
            name: each.metrics if category == "all" else grouped[name][category] for name, each in methods.items()
        }
        plain = Interval.from_metrics(values["grounded"], "throughput/baseline_tokens_per_s")
        found.append(line(BASELINE, category, "tokens_per_s", plain))
        for name, metrics in values.items():
            for figure, metric in QUANTITIES.items():
                found.append(line(name, category, figure, Interval.from_metrics(metrics, metric)))
    return found


def record(prompts: str, run: Run) -> None:
    """Write the lines of one set of prompts into the file, in the place of its earlier ones."""
    about = provenance(run)
    own = {"command": about["command"], "date": about["date"], "load_average": about["load_average"]}
    count = len(prompt_sums(run.arms().plain()))
    rows = [row for row in kept_figures(grounded_gain.RESULT) if row["prompts"] != prompts]
    rows += [{"prompts": prompts, "count": count, **each, **own} for each in figures(run)]
    rows.sort(key=lambda row: SETS.index(row["prompts"]))
    environment = run.environment()
    head = {key: about[key] for key in ("date", "commit")} | {key: environment[key] for key in ("cpu", "versions")}
    write_lines(grounded_gain.RESULT, head, figures=rows)


def decoded(prompts: str, *overrides: str) -> Run:
    every = ("+experiment=grounded_bars", *overrides, f"measurement.max_new_tokens={TOKENS}", "tracking.enabled=false")
    return finished(Path("outputs/grounded_bars", prompts), every)


def assert_identical(run: Run) -> None:
    """Require of both drafters that every text is the baseline's, or differs by a near-tie."""
    assert [run.metrics[f"{start}lossless/unexplained"] for start in ("", f"drafter/{OTHER}/")] == [0, 0]


def test_code_of_the_standard_library():
    run = decoded("stdlib_code")
    record("stdlib_code", run)
    assert_identical(run)


def test_mt_bench(shared_data):
    """All 80 questions; in the committed command the file stands without its folder."""
    file = shared_data / "prompts/mt_bench/question.jsonl"
    if not file.is_file():
        pytest.skip(f"the questions of MT-Bench are not here: {file} does not exist")
    run = decoded("mt_bench", "prompts=mt_bench", f"prompts.path={file}", "prompts.limit=null")
    record("mt_bench", run)
    assert_identical(run)
