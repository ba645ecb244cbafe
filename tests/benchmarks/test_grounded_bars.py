"""Measures grounded heads, independent heads and plain decoding in one session, for two sets of prompts, which
`analysis/research/grounded_gain.py` and the table of claims read; five minutes of one quiet core.

The questions of MT-Bench are no part of the repository: without the shared data their part is skipped. The file keeps
what was found on the other set.
"""

from pathlib import Path

import pytest
from fixtures.claim_figures import OTHER, grounded_figures
from fixtures.measured_commands import finished, provenance
from fixtures.measuring import kept_figures, write_lines

from specdec.analysis.read.runs import Run
from specdec.analysis.research import grounded_gain
from specdec.analysis.rounds import prompt_sums

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]

SETS = ("mt_bench", "stdlib_code")  # in the order of the file
TOKENS = 24  # of an answer; a question of MT-Bench has two


def record(prompts: str, run: Run) -> None:
    """Write the lines of one set of prompts into the file, in the place of its earlier ones."""
    about = provenance(run)
    own = {"command": about["command"], "date": about["date"], "load_average": about["load_average"]}
    count = len(prompt_sums(run.arms().plain()))
    rows = [row for row in kept_figures(grounded_gain.RESULT) if row["prompts"] != prompts]
    rows += [{"prompts": prompts, "count": count, **each, **own} for each in grounded_figures(run)]
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
