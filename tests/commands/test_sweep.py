"""Sweeps: one parent run, cells that fail alone, the table, and the exit codes. The task is a stand-in."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from specdec.commands import cli
from specdec.config import TrackingConfig, validated
from specdec.errors import Terminated, UsageError
from specdec.tracking.store import locate, opened
from specdec.tracking.writer import tracked_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sweeps")


@pytest.fixture(scope="module")
def store(folder: Path, empty_database: Path) -> tuple[Any, str]:
    shutil.copy(empty_database, folder / "mlflow.db")
    return opened(locate(None, folder), "specdec")


@pytest.fixture
def runs(store: tuple[Any, str]) -> Callable[[], list[Any]]:
    """The store's active runs, newest first; lines of charts apart."""
    client, experiment = store
    return lambda: [run for run in client.search_runs([experiment]) if run.data.tags.get("specdec.role") != "curve"]


def task(values: Mapping[str, Any]) -> dict[str, float]:
    gamma = values["structure"]["gamma"]
    if gamma == 0:
        raise UsageError("Bad value structure.gamma=0: it should be at least 1.")
    if gamma == 13:
        raise ValueError("a bug | in one cell")
    if gamma == 14:
        raise Terminated("Stopped by SIGTERM.")
    if gamma == 15:
        sys.exit(7)
    settings = validated(TrackingConfig, values["tracking"])
    with tracked_run(settings, name=f"g{gamma}", params={}, tags={}, results=cli.output_dir()) as run:
        run.metrics({"speedup": 1 + gamma / 10})
    return {"speedup": 1 + gamma / 10, "tokens_per_round": 2.0}


@pytest.fixture
def sweep(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], logging_as_before: None
) -> Callable[..., tuple[int, str, str]]:
    """`sweep("1,2", ...)` sweeps structure.gamma and returns the exit code, stdout and stderr."""
    monkeypatch.chdir(folder)

    def sweep(gammas: str, *arguments: str) -> tuple[int, str, str]:
        argv = ["specdec", "-m", "+drafter=ngram", f"structure.gamma={gammas}", *arguments]
        monkeypatch.setattr(sys, "argv", argv)
        code = 0
        try:
            cli.main("config", task)
        except SystemExit as end:
            code = int(end.code or 0)
        assert "SPECDEC_PARENT_RUN" not in os.environ and "SPECDEC_SWEEP_CELL" not in os.environ
        return code, *capsys.readouterr()

    return sweep


def last_folder(folder: Path) -> Path:
    return max(folder.glob("multirun/*/*"))


@pytest.mark.slow
def test_cells_are_nested_in_one_parent(sweep, runs, folder):
    code, out, _ = sweep("1,2")
    second, first, parent = runs()[:3]
    assert code == 0 and parent.data.tags["specdec.role"] == "sweep"
    assert [run.info.status for run in (parent, first, second)] == ["FINISHED"] * 3
    assert [run.data.tags["specdec.sweep_cell"] for run in (first, second)] == ["0", "1"]
    assert {run.data.tags["mlflow.parentRunId"] for run in (first, second)} == {parent.info.run_id}
    assert "speedup" not in parent.data.metrics and first.data.metrics == {"speedup": 1.1}
    assert (last_folder(folder) / "sweep.csv").read_text().splitlines() == [
        "cell,overrides,speedup,tokens_per_round,exit code,fault",
        "0,structure.gamma=1,1.100,2.000,0,",
        "1,structure.gamma=2,1.200,2.000,0,",
    ]
    uploaded = Path(parent.info.artifact_uri.removeprefix("file://")) / "sweep.md"
    assert "| 1 | structure.gamma=2 | 1.200 | 2.000 | 0 |  |" in uploaded.read_text()
    assert "structure.gamma=2" in out and "mlflow ui --backend-store-uri sqlite:///mlflow.db\n" in out


@pytest.mark.slow
def test_the_sweep_is_one_chart(sweep, runs, store):
    _, out, _ = sweep("1,2", "sampling=greedy,temperature", "-v")
    parent = next(run for run in runs() if run.data.tags.get("specdec.role") == "sweep")
    expected = {f"sampling={name}": {1: 1.1, 2: 1.2} for name in ("greedy", "temperature")}
    client, experiment = store
    lines = {
        line.info.run_name: {at.step: at.value for at in client.get_metric_history(line.info.run_id, "sweep/speedup")}
        for line in client.search_runs([experiment], "tags.`specdec.role` = 'curve'")
    }
    assert expected.items() <= lines.items()
    assert parent.data.metrics["sweep/speedup/sampling_greedy"] == 1.2 and "speedup" not in parent.data.metrics
    assert "overlay: " in out and "#/experiments/" in out


@pytest.mark.slow
def test_a_cell_fails_alone(sweep, runs, folder):
    code, _, error = sweep("13,0,15,1")
    last, parent = runs()[:2]
    assert (code, parent.info.status, last.info.status) == (3, "FAILED", "FINISHED")
    assert "specdec: cell 1: Bad value structure.gamma=0" in error and "ValueError: a bug" in error
    assert error.endswith("specdec: 3 of 4 cells failed; the table says why.\n")
    cells = [json.loads((last_folder(folder) / str(cell) / "cell.json").read_text()) for cell in range(4)]
    assert [cell["exit_code"] for cell in cells] == [1, 2, 7, 0]
    assert "| 0 | structure.gamma=13 |  |  | 1 | ValueError: a bug \\| in one cell |" in (
        last_folder(folder) / "sweep.md"
    ).read_text()  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("gammas, more", [("0", ()), ("1,2", ("structure.k=3",)), ("1", ("+prompts=jsonl,jsnl",))])
def test_a_sweep_that_never_began_leaves_no_run(sweep, runs, gammas, more):
    before = len(runs())
    code, out, error = sweep(gammas, *more)
    assert (code, out, len(runs())) == (2, "", before)
    assert sum(line.startswith("specdec: ") for line in error.splitlines()) == 1


@pytest.mark.slow
def test_an_interrupted_sweep_ends_at_once_as_killed(sweep, runs, folder):
    code, _, error = sweep("1,14,2")
    last, parent = runs()[:2]
    assert (code, parent.info.status, last.info.run_name) == (143, "KILLED", "g1")
    assert error.endswith("specdec: Stopped by SIGTERM.\n")
    assert len((last_folder(folder) / "sweep.csv").read_text().splitlines()) == 3


def test_a_sweep_without_tracking_still_has_its_table(sweep, folder):
    code, out, _ = sweep("1,2", "tracking.enabled=false")
    assert code == 0 and "#/experiments/" not in out and not list(last_folder(folder).rglob("mirror.json"))
    assert len((last_folder(folder) / "sweep.csv").read_text().splitlines()) == 3
