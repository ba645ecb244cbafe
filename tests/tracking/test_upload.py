"""A store that is down, breaks off or was killed has in the end what a store that was there has, and has it once."""

import json
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from specdec.config import TrackingConfig
from specdec.errors import EnvironmentFault, UsageError
from specdec.tracking import store
from specdec.tracking.record import METRICS, RECORD, RunRecord
from specdec.tracking.store import locate, opened
from specdec.tracking.upload import MIRRORS, logged_folders, run_folders, upload
from specdec.tracking.views import EXPERIMENT, NOTE, RUN, overlay
from specdec.tracking.writer import PARENT_RUN, SWEEP_CELL, tracked_run

AWAY = "http://127.0.0.1:9"


def config(**changes: Any) -> TrackingConfig:
    values = {"uri": None, "experiment": "late", "enabled": True, "required": False, "run_name": None}
    return TrackingConfig(**(values | changes))


@pytest.fixture
def here(made_database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with a database, where servers that are away are given up at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(store, "_silent", {})
    return tmp_path


def run(folder: Path, **changes: Any) -> None:
    """Log what a run logs, into `folder` and the store."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.md").write_text("# A report\n")
    (folder / "figures").mkdir(exist_ok=True)
    (folder / "figures" / "curve.png").write_bytes(b"png")
    tags = {"drafter": "ngram", "model": "pocket", "gamma": "4"}
    with tracked_run(config(**changes), name="a run", params={"seed": 0}, tags=tags, results=folder) as tracked:
        tracked.metrics({"speedup": 1.5, "nothing": float("nan")})
        tracked.curves({"curve/measured": {1: 1.5, 2: 2.0}})
        tracked.curve_children("curve/tokens_per_round", {"measured": {1: 1.5, 2: 2.0}, "theory": {1: 1.6}})
        tracked.tags({"alpha_source": "text"})
        tracked.artifacts()


def sync(*folders: Path, uri: str | None = None) -> list[str]:
    return [each.done for each in upload(run_folders(folders), uri)]


def content(here: Path, times: bool = True) -> dict[str, Any]:
    """All that the store knows of its runs, by name; without the numbers that every store gives anew."""
    client, experiment = opened(locate(None, here), "late")
    runs = client.search_runs([experiment])
    names = {each.info.run_id: each.info.run_name for each in runs}
    found: dict[str, Any] = {}
    for each in runs:
        number, tags = each.info.run_id, dict(each.data.tags)
        for volatile in ("specdec.mirror", "specdec.heartbeat", "specdec.tracking.writer"):
            tags.pop(volatile, None)
        tags["mlflow.parentRunId"] = names.get(tags.get("mlflow.parentRunId", ""), "")
        history = {
            name: sorted((point.step, repr(point.value), point.timestamp if times else 0) for point in points)
            for name in each.data.metrics
            for points in [client.get_metric_history(number, name)]
        }
        files = {item.path for folder in (None, "figures") for item in client.list_artifacts(number, folder)}
        began = (each.info.start_time, each.info.end_time) if times else ()
        assert each.info.run_name not in found, "doubled"
        found[each.info.run_name] = (each.info.status, began, each.data.params, tags, history, files)
    return found


def dump(here: Path) -> list[str]:
    with sqlite3.connect(here / "mlflow.db") as connection:
        return list(connection.iterdump())


@pytest.mark.slow
def test_a_run_without_its_store_is_uploaded_as_if_it_had_been_there(here):
    run(here / "live")
    expected = content(here, times=False)
    ended = RunRecord.read(here / "live").ended
    assert {expected["a run"][0]} == {"FINISHED"} and set(expected) >= {"measured: ngram on pocket, gamma 4"}
    client, experiment = opened(locate(None, here), "late")
    for each in client.search_runs([experiment]):
        client.delete_run(each.info.run_id)

    run(here / "away", uri=AWAY)
    assert not (here / "away" / MIRRORS).exists()
    assert sync(here / "away", uri="sqlite:///mlflow.db") == ["uploaded"]
    assert content(here, times=False) == expected
    status, (start, end), *_ = content(here)["a run"]
    record = RunRecord.read(here / "away")
    assert (start, end) == (record.began, record.ended) and start > ended
    before = dump(here)
    assert sync(here / "away", uri="sqlite:///mlflow.db") == ["complete"] and dump(here) == before
    (said,) = json.loads((here / "away" / MIRRORS).read_text()).values()
    assert said["complete"] and said["experiment"] == "late"


def test_the_addresses_in_a_note_are_those_of_the_store_that_has_it(here, empty_database):
    other = "sqlite:///other.db"
    shutil.copy(empty_database, here / "other.db")
    with tracked_run(config(), name="a run", params={}, tags={}, results=here / "run") as tracked:
        tracked.tags({NOTE: f"[chart]({overlay(EXPERIMENT, RUN, 'speedup')})"})
    assert sync(here / "run", uri=other) == ["uploaded"]
    notes = []
    for uri in (None, other):
        client, experiment = opened(locate(uri, here), "late")
        (each,) = client.search_runs([experiment])
        assert each.data.tags[NOTE] == f"[chart]({overlay(experiment, each.info.run_id, 'speedup')})"
        notes.append(each.data.tags[NOTE])
    assert notes[0] != notes[1] and "://" not in notes[0]


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("call", "number", "done"),
    [
        ("create_run", 1, True),
        ("log_batch", 3, True),
        slow("create_run", 2, False),
        slow("log_artifact", 1, False),
        slow("set_terminated", 1, True),
    ],
)
def test_an_upload_that_broke_off_is_completed_and_doubles_nothing(here, monkeypatch, call, number, done):
    """Each kind of call fails once in a live run: before it did anything, or after the store did it."""
    run(here / "whole")
    expected = content(here, times=False)
    client, experiment = opened(locate(None, here), "late")
    for each in client.search_runs([experiment]):
        client.delete_run(each.info.run_id)
    whole, calls = getattr(MlflowClient, call), []

    def broken(*arguments: Any, **values: Any) -> Any:
        calls.append(1)
        if len(calls) != number:
            return whole(*arguments, **values)
        if done:
            whole(*arguments, **values)
        raise OSError("gone")

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, call, broken)
        run(here / "half")
    assert content(here, times=False) != expected or call == "set_terminated"
    assert sync(here / "half") == ["uploaded"]
    assert content(here, times=False) == expected
    (main,) = client.search_runs([experiment], "tags.`specdec.role` = 'main'")
    assert main.data.tags.get("specdec.tracking.writer", "synced") == "synced"
    before = dump(here)
    assert sync(here / "half") == ["complete"] and dump(here) == before


def test_a_sweep_is_uploaded_with_its_parent_and_each_cell_below_it(here, monkeypatch):
    """The store comes back between the first cell and the second: the first one is put below its sweep later."""
    sweep = here / "sweep"
    tags = {"specdec.role": "sweep"}
    with tracked_run(config(uri=AWAY), name="the sweep", params={}, tags=tags, results=sweep) as parent:
        monkeypatch.setenv(PARENT_RUN, str(sweep))
        for cell, uri in enumerate((None, AWAY)):
            monkeypatch.setenv(SWEEP_CELL, str(cell))
            with tracked_run(config(uri=uri), name=f"cell {cell}", params={}, tags={}, results=sweep / str(cell)):
                pass
        parent.metrics({"sweep/speedup": 1.5})
    assert content(here)["cell 0"][3]["mlflow.parentRunId"] == ""
    assert sync(sweep / "1", uri="sqlite:///mlflow.db") == ["uploaded"]  # alone: its sweep is not there yet
    assert sync(sweep, uri="sqlite:///mlflow.db") == ["uploaded"] * 3
    found = content(here)
    assert {name: found[name][3]["mlflow.parentRunId"] for name in found} == {
        "the sweep": "",
        "cell 0": "the sweep",
        "cell 1": "the sweep",
    }
    assert [found[f"cell {cell}"][3]["specdec.sweep_cell"] for cell in range(2)] == ["0", "1"]
    assert sync(sweep, uri="sqlite:///mlflow.db") == ["complete"] * 3


@pytest.mark.slow
def test_a_killed_run_is_uploaded_as_killed_and_a_running_one_left_alone(here):
    child = os.fork()
    if not child:
        tracked_run(config(uri=AWAY), name="killed", params={"seed": 1}, tags={}, results=here / "killed").metrics(
            {"speedup": 1.25}
        )
        os._exit(9)
    os.waitpid(child, 0)
    with (here / "killed" / METRICS).open("a") as file:
        file.write('{"points": [["speedup", 0, 7')  # what the kill cut short
    alive = tracked_run(config(), name="alive", params={}, tags={}, results=here / "alive")
    assert sync(here, uri="sqlite:///mlflow.db") == ["running", "uploaded"]
    status, (start, end), params, _, history, _ = content(here)["killed"]
    assert (status, params) == ("KILLED", {"seed": "1"}) and start <= end
    assert [point[:2] for point in history["speedup"]] == [(0, "1.25")]
    assert sync(here / "killed", uri="sqlite:///mlflow.db") == ["complete"]
    assert content(here)["alive"][0] == "RUNNING"
    alive.end("FINISHED")


def test_a_run_that_begins_anew_in_a_folder_is_another_run(here):
    run(here / "one")
    with tracked_run(config(uri=AWAY), name="anew", params={}, tags={}, results=here / "one", fresh=True):
        pass
    assert sync(here / "one", uri="sqlite:///mlflow.db") == ["uploaded"]
    assert {content(here)[name][0] for name in ("a run", "anew")} == {"FINISHED"}


def test_a_run_that_was_logged_nowhere_is_uploaded_when_it_is_named(here):
    run(here / "outputs" / "off", enabled=False)
    assert logged_folders([here / "outputs", here / "multirun"]) == []
    assert sync(here / "outputs") == ["uploaded"] and content(here)["a run"][0] == "FINISHED"


def test_what_cannot_be_uploaded_is_said_in_one_sentence(here):
    (here / "empty").mkdir()
    with pytest.raises(UsageError, match="has no tracking.json"):
        sync(here / "empty")
    run(here / "away", uri=AWAY)
    with pytest.raises(EnvironmentFault, match="does not answer"):
        sync(here / "away")
    run(here / "secret", uri="http://me:secret@127.0.0.1:9")
    assert "secret" not in (here / "secret" / RECORD).read_text()
    with pytest.raises(UsageError, match="password is not kept: give the address with --tracking-uri"):
        sync(here / "secret")


def test_a_discarded_run_reaches_no_store(here):
    tracked_run(config(uri=AWAY), name="never began", params={}, tags={}, results=here / "gone").discard()
    assert sync(here / "gone", uri="sqlite:///mlflow.db") == ["uploaded"]
    assert content(here) == {}
