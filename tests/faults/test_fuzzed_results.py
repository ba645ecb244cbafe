"""Output folders whose files are spoiled at random: a report on what is left, or a refusal in one sentence."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from faults.answers import answered, files_of, torn
from specdec.analysis.pages import report_chapters
from specdec.analysis.pages.html import Chapter
from specdec.analysis.pages.trace import trace_html
from specdec.analysis.read.find_runs import find_runs, finished_study
from specdec.analysis.read.runs import Run, read_traces
from specdec.targets.replay import cost_of_run

pytestmark = pytest.mark.slow  # many examples of bad input


SETTINGS = settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
FILES = ("plan.json", "session.json", "summary.json", "account.json", "environment.json", "calibration.json")
FILES += ("rounds.parquet", "replay.parquet", "alpha.parquet", "generations.jsonl", "config.yaml")
QUICK = ("Summary", "By category", "As the papers define it", "Cost of a call", "Environment", "How to reproduce")
READERS: tuple[Callable[[Run], Any], ...] = (
    *(Run.facts, Run.session, Run.rounds, Run.generations, Run.replay, Run.alpha_sums),
    *(Run.account, Run.summary, Run.calibration, Run.environment),
    lambda each: [each.arms()[arm] for arm in each.arms()],
    lambda each: (each.title, each.setting, each.primary_gamma, each.drafters),
)


@pytest.fixture(scope="module")
def finished(finished_run: Callable[[str], Path]) -> Path:
    return finished_run("oracle")


@pytest.fixture
def report(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, bytes], str]:
    """`report(name, content)` reports on the run with one of its files replaced."""
    sections = tuple((title, make) for title, make in report_chapters.OF_A_RUN if title in QUICK)
    monkeypatch.setattr(report_chapters, "OF_A_RUN", sections)
    folder = Path(shutil.copytree(finished, tmp_path / "run"))

    def reported(name: str, content: bytes) -> str:
        def make() -> None:
            runs, _, notes = find_runs([str(folder)], "sqlite:///none.db")
            chapters: list[Chapter] = report_chapters.run_chapters(runs, notes)
            assert all(each.title for each in chapters)
            for read in READERS:
                answered(partial(read, runs[0]))

        (folder / name).write_bytes(content)
        try:
            return answered(make)
        finally:
            shutil.copy(finished / name, folder / name)

    return reported


@settings(SETTINGS, max_examples=30)
@given(data=st.data())
def test_files(report: Callable[[str, bytes], str], finished: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(FILES))
    content = (finished / name).read_bytes()
    values = {".json": json.loads, ".yaml": yaml.safe_load}.get(Path(name).suffix)
    report(name, data.draw(torn(content) if values is None else files_of(values(content), most=3)))


@SETTINGS
@given(data=st.data())
def test_traces(tmp_path: Path, finished: Path, data: st.DataObject) -> None:
    (tmp_path / "traces.json").write_bytes(data.draw(files_of(json.loads((finished / "traces.json").read_bytes()))))
    answered(lambda: trace_html(read_traces(tmp_path / "traces.json")))


@SETTINGS
@given(data=st.data())
def test_costs_of_a_run(tmp_path: Path, finished: Path, data: st.DataObject) -> None:
    calibration = files_of(json.loads((finished / "calibration.json").read_bytes()))
    shutil.copy(finished / "config.yaml", tmp_path)
    (tmp_path / "calibration.json").write_bytes(data.draw(calibration))
    (tmp_path / "rounds.parquet").write_bytes(data.draw(torn((finished / "rounds.parquet").read_bytes())))
    answered(lambda: cost_of_run(tmp_path))


STUDY: dict[str, Any] = {
    "study": "topk", "title": "t", "prompts": "p", "greedy": True, "simulated": False, "replicates": 10, "seed": 0,
}  # fmt: skip


@SETTINGS
@given(content=files_of(STUDY))
def test_studies(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "study.json").write_bytes(content)
    answered(lambda: finished_study(tmp_path))
