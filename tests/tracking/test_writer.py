"""What a store receives, how runs end, and what is said when a store cannot be used."""

import importlib.metadata
import importlib.util
import json
import logging
import math
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from specdec.config import TrackingConfig
from specdec.errors import EnvironmentFault, Interrupted, NumericsError, Terminated, UsageError
from specdec.tracking import store
from specdec.tracking.store import locate, opened
from specdec.tracking.writer import check_store, tracked_run


def config(**changes: Any) -> TrackingConfig:
    values = {"uri": None, "experiment": "tests", "enabled": True, "required": False, "run_name": None}
    return TrackingConfig(**(values | changes))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, empty_database: Path) -> Path:
    """A folder with a store, which all tests share."""
    folder = tmp_path_factory.mktemp("a folder")
    shutil.copy(empty_database, folder / "mlflow.db")
    check_store(config(), folder)
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> Any:
    return opened(locate(None, folder), "tests")[0]


@pytest.fixture(scope="module")
def record(folder: Path, client: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """`record(write)` opens a run, calls `write(run)`, and returns the run that MLflow then has."""
    address = f"sqlite:///{folder}/mlflow.db"

    def record(
        write: Callable[[Any], None], params: Any = None, tags: Any = None, results: Path | None = None, **changes: Any
    ) -> Any:
        settings, results = config(**{"uri": address, **changes}), results or tmp_path_factory.mktemp("run")
        with tracked_run(settings, name="a run", params=params or {}, tags=tags or {}, results=results) as run:
            write(run)
        return client.get_run(run.run_id)

    return record


def last_run(client: Any) -> Any:
    experiment = client.get_experiment_by_name("tests").experiment_id
    return client.search_runs([experiment], "tags.`specdec.role` = 'main'", max_results=1)[0]


@pytest.mark.parametrize(
    ("uri", "address", "artifacts"),
    [
        (None, "sqlite:////work/mlflow.db", "/work/mlartifacts"),
        ("sqlite:///there/m.db", "sqlite:////work/there/m.db", "/work/there/mlartifacts"),
        ("sqlite:////abs/m.db?timeout=5", "sqlite:////abs/m.db?timeout=5", "/abs/mlartifacts"),
        ("http://host:5000/", "http://host:5000", None),
        ("postgresql://me:secret@host/db", "postgresql+psycopg://me:secret@host/db", "/work/mlartifacts"),
        ("postgresql+psycopg2://host/db", "postgresql+psycopg2://host/db", "/work/mlartifacts"),
    ],
)
def test_an_address_becomes_absolute(uri, address, artifacts):
    store = locate(uri, Path("/work"))
    assert (store.uri, store.artifacts) == (address, Path(artifacts) if artifacts else None)
    assert "secret" not in store.shown


@pytest.mark.parametrize(
    "uri", ["mlflow.db", "ftp.example", "./mlruns", "file:///tmp/mlruns", "sqlite:///:memory:", "sqlite:///"]
)
def test_an_address_that_is_no_store_is_refused(uri):
    with pytest.raises(UsageError, match="tracking.uri="):
        locate(uri, Path("/work"))


@pytest.mark.slow
def test_everything_lies_in_the_folder(folder, record, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"  # a checkout may hold the store of earlier runs
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    run = record(lambda run: None)
    assert run.info.artifact_uri.startswith((folder / "mlartifacts").as_uri())
    assert not list(elsewhere.iterdir())


@pytest.mark.slow
def test_values_arrive(record):
    values = {"speedup": 1.5, "nan": math.nan, "infinite": math.inf, "absent": None, "a[b]=c,d@e": 1, "../x": 2}
    params = {"structure.gamma": 4, "long": "x" * 7000, "tracking.uri": "http://me:secret@host"}
    run = record(lambda run: run.metrics(values, step=3), params=params, tags={"specdec.cell": "abc"})
    assert math.isnan(run.data.metrics.pop("nan"))
    assert run.data.metrics == {"speedup": 1.5, "a_b__c_d_e": 1.0, "_x": 2.0}
    assert run.data.params["structure.gamma"] == "4" and len(run.data.params["long"]) == 6000
    assert run.data.params["tracking.uri"] == "http://***@host"
    expected = {"specdec.role": "main", "specdec.cell": "abc", "mlflow.runName": "a run"}
    assert expected.items() <= run.data.tags.items()
    assert {"specdec.host", "specdec.process", "specdec.heartbeat"} <= run.data.tags.keys()


def test_prompts_are_a_dataset_input_once_and_the_experiment_opens_in_the_training_view(client, record):
    prompts = {"name": "code", "sha256": "ab" * 32, "count": 7, "source": "here"}

    def write(run: Any) -> None:
        for _ in range(2):  # a run that goes on says it again
            run.dataset(prompts)

    run = record(write)
    (found,) = run.inputs.dataset_inputs
    assert (found.dataset.name, found.dataset.digest) == ("code", ("ab" * 32)[:36])
    assert json.loads(found.dataset.source) == prompts
    assert json.loads(found.dataset.profile) == {"num_rows": 7}
    assert run.data.tags["mlflow.user"]
    experiment = client.get_experiment(run.info.experiment_id)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"


@pytest.mark.slow
def test_many_values_go_in_batches(client, record):
    curve = {step: float(step) for step in range(2500)}
    run = record(lambda run: run.curves({"curve/measured": curve}))
    history = client.get_metric_history(run.info.run_id, "curve/measured")
    assert {point.step: point.value for point in history} == curve


def test_curves_share_a_key_on_children_of_their_own(client, record):
    def write(run: Any) -> None:
        run.curve_children("curve/tokens_per_round", {"measured": {1: 1.5, 2: 2.0}, "capped geometric": {1: 1.6}})
        run.curve_children("curve/speedup", {"measured": {1: 1.2}})

    run = record(write, tags={"drafter": "ngram", "model": "/models/large/", "gamma": "4"})
    query = f"tags.`mlflow.parentRunId` = '{run.info.run_id}'"
    found = client.search_runs([run.info.experiment_id], query)
    children = {child.data.tags["specdec.line"]: child for child in found}
    assert {child.data.tags["specdec.role"] for child in children.values()} == {"curve"}
    assert {child.info.status for child in children.values()} == {"FINISHED"}
    colours = {child.data.tags["mlflow.runColor"] for child in children.values()}
    assert len(colours) == len(children) and all(re.fullmatch("#[0-9A-F]{6}", each) for each in colours)
    measured, formula = (children[name].data.metrics for name in ("measured", "capped geometric"))
    assert measured.pop("curve/x") == 2.0 and 1.0 < formula.pop("curve/x") < 1.1  # side by side
    assert measured == {"curve/tokens_per_round": 2.0, "curve/speedup": 1.2}
    assert formula == {"curve/tokens_per_round": 1.6}
    assert children["measured"].info.run_name == "measured: ngram on large, gamma 4"


def test_a_runs_folder_is_uploaded_without_its_parts(tmp_path, client, record):
    kept = ["rounds.parquet", "generations.jsonl", "account.json", "config.yaml", "trace.html", "report.md"]
    for name in (*kept, "rounds.part-00.parquet", "parts/rounds-1.parquet", "specdec.log", "figures/curve.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("content")
    identifier = record(lambda run: run.artifacts(), results=tmp_path).info.run_id
    assert {file.path for file in client.list_artifacts(identifier)} == {*kept, "figures"}
    assert [file.path for file in client.list_artifacts(identifier, "figures")] == ["figures/curve.png"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (None, "FINISHED"),
        (NumericsError("NaN logits at position 7.\nmore"), "FAILED"),
        (SystemExit(3), "FAILED"),
        (Terminated("Stopped."), "KILLED"),
        (KeyboardInterrupt(), "KILLED"),
    ],
)
def test_a_run_ends_as_it_went(client, record, error, status):
    def write(run: Any) -> None:
        if error is not None:
            raise error

    with pytest.raises(type(error)) if error else nullcontext():
        record(write)
    run = last_run(client)
    assert run.info.status == status
    failure = "NumericsError: NaN logits at position 7" if isinstance(error, NumericsError) else None
    assert run.data.tags.get("specdec.failure") == failure


def test_the_link_opens_the_chart_view(record, folder):
    links = []
    run = record(lambda run: links.append(run.link))
    command, address = links[0].splitlines()
    assert command == f"mlflow ui --backend-store-uri 'sqlite:///{folder}/mlflow.db'"
    assert f"/#/experiments/{run.info.experiment_id}/runs?" in address and "Mode=CHART" in address


def test_without_the_pages_of_mlflow_the_link_says_how_to_get_them(folder, monkeypatch):
    """As with mlflow-skinny, where `mlflow ui` ends in a traceback."""
    found = importlib.util.find_spec
    monkeypatch.setattr(store, "find_spec", lambda name: None if name == "flask" else found(name))
    version = importlib.metadata.version("mlflow-skinny")
    assert store.serving(locate(None, folder)).startswith(f"pip install mlflow=={version} && mlflow ui --backend")


@pytest.mark.parametrize("lacking", [{"sqlalchemy"}, {"sqlalchemy", "alembic"}])
def test_mlflow_skinny_without_a_driver_is_answered_with_what_to_install(lacking, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "find_spec", lambda name: None if name in lacking else importlib.util.find_spec(name))
    wanted = "pip install " + " ".join(name for name in store.DRIVER if name in lacking)
    with pytest.raises(UsageError, match=re.escape(wanted) + ", or name a server with tracking.uri=http"):
        opened(locate(None, tmp_path), "tests")
    assert not list(tmp_path.iterdir())
    store.check_driver(locate("http://localhost:5000", tmp_path))  # a server has a driver of its own


def test_disabled_tracking_leaves_the_record_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    check_store(config(enabled=False, uri="nonsense"), tmp_path)
    with tracked_run(config(enabled=False), name="", params={"a": 1}, tags={}, results=tmp_path) as run:
        run.metrics({"speedup": 1.0})
        run.curves({"curve/measured": {1: 1.0}})
        run.curve_children("curve/speedup", {"measured": {1: 1.0}})
        run.artifacts()
        run.heartbeat()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert (run.run_id, run.link, files) == ("", "", ["tracking.json", "tracking_metrics.jsonl"])


def break_store(monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[int]:
    """Make `log_batch` raise; returns the list that grows with every call."""
    from mlflow.tracking import MlflowClient

    calls: list[int] = []

    def log_batch(*_: Any, **__: Any) -> None:
        calls.append(1)
        raise error

    monkeypatch.setattr(MlflowClient, "log_batch", log_batch)
    return calls


def test_a_store_that_goes_away_costs_one_warning(monkeypatch, caplog, client, record, tmp_path):
    def write(run: Any) -> None:
        calls = break_store(monkeypatch, OSError("gone\ndetails"))
        for _ in range(3):
            run.metrics({"speedup": 1.0})
        assert len(calls) == 1

    with caplog.at_level(logging.WARNING):
        run = record(write, results=tmp_path)
    assert [entry.message for entry in caplog.records if entry.name == "specdec.tracking.writer"] == [
        "Tracking failed while logging metrics and is off for the rest of this run; the results stay on disk. gone. "
        f"Upload them later: python -m specdec.sync {tmp_path}"
    ]
    assert (run.info.status, run.data.tags["specdec.tracking.writer"]) == ("FAILED", "incomplete")


def test_a_required_store_that_goes_away_ends_the_run(monkeypatch, client, record):
    def write(run: Any) -> None:
        break_store(monkeypatch, OSError("gone"))
        run.metrics({"speedup": 1.0})

    with pytest.raises(EnvironmentFault, match="Tracking is required and failed while logging metrics: gone."):
        record(write, required=True)
    assert last_run(client).info.status == "FAILED"


def test_a_signal_inside_mlflow_is_still_the_signal(monkeypatch, client, record):
    """It arrives as MLflow's own error; the line that it cut short is in the store all the same."""
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    wrapped = MlflowException("Stopped by SIGTERM")
    wrapped.__cause__ = Terminated("Stopped by SIGTERM.")
    whole, errors = MlflowClient.log_batch, [wrapped]

    def log_batch(*arguments: Any, **values: Any) -> None:
        if errors:
            raise errors.pop()
        whole(*arguments, **values)

    def write(run: Any) -> None:
        monkeypatch.setattr(MlflowClient, "log_batch", log_batch)
        run.metrics({"speedup": 1.5})

    with pytest.raises(Interrupted):
        record(write)
    run = last_run(client)
    assert (run.info.status, run.data.metrics) == ("KILLED", {"speedup": 1.5})


def test_runs_of_dead_processes_are_closed(folder, client, record):
    def write(alive: Any) -> None:
        own = client.get_run(alive.run_id)
        tags = {"specdec.host": own.data.tags["specdec.host"], "specdec.process": "1:5"}
        dead = client.create_run(own.info.experiment_id, tags=tags).info.run_id
        others = []
        for hours in (1, 7):
            beaten = time.strftime(store.HEARTBEAT, time.gmtime(time.time() - hours * 3600))
            away = tags | {"specdec.host": "elsewhere", "specdec.heartbeat": beaten}
            others.append(client.create_run(own.info.experiment_id, tags=away).info.run_id)
        check_store(config(), folder)
        statuses = [client.get_run(identifier).info.status for identifier in (dead, alive.run_id, *others)]
        assert statuses == ["KILLED", "RUNNING", "RUNNING", "KILLED"]
        client.set_terminated(others[0], "KILLED")

    record(write)


def test_a_file_that_is_no_mlflow_database_is_refused_and_kept(tmp_path):
    garbage, foreign, torn = (tmp_path / name for name in ("garbage.db", "foreign.db", "torn.db"))
    garbage.write_bytes(b"rounds, as text\n" * 100)
    torn.write_bytes(b"SQLite format 3\0" + b"\x07" * 5000)
    connection = sqlite3.connect(foreign)
    connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
    connection.close()
    for path in (garbage, foreign, torn, tmp_path):
        before = path.read_bytes() if path.is_file() else None
        with pytest.raises(UsageError, match="tracking.uri=sqlite:///FILE") as refusal:
            check_store(config(uri=f"sqlite:///{path}"), tmp_path)
        assert str(path) in str(refusal.value) and refusal.value.exit_code == 2
        assert before is None or path.read_bytes() == before


def test_a_database_of_another_mlflow_is_not_migrated_unasked(folder, tmp_path, client):
    other = shutil.copy(folder / "mlflow.db", tmp_path / "mlflow.db")
    with sqlite3.connect(other) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'cafe'")
    connection.close()
    before = Path(other).read_bytes()
    with pytest.raises(UsageError, match=f"run `mlflow db upgrade sqlite:///{other}`"):
        check_store(config(), tmp_path)
    assert Path(other).read_bytes() == before


def test_a_deleted_experiment_is_refused_with_both_ways_out(folder, client):
    check_store(config(experiment="gone"), folder)
    identifier = client.get_experiment_by_name("gone").experiment_id
    client.delete_experiment(identifier)
    with pytest.raises(UsageError) as refusal:
        check_store(config(experiment="gone"), folder)
    assert f"mlflow experiments restore --experiment-id {identifier}" in str(refusal.value)
    assert "tracking.experiment=NAME" in str(refusal.value)


def test_a_server_that_does_not_answer_costs_seconds_and_no_run(monkeypatch, caplog, tmp_path):
    """Before decoding it is an error where tracking is required, with exit code 4; else one sentence with the remedy.
    The server is asked once for both.
    """
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(store, "_silent", {})
    away = {"uri": "http://127.0.0.1:9", "required": True}
    with pytest.raises(EnvironmentFault, match="The tracking server http://127.0.0.1:9 does not answer") as fault:
        check_store(config(**away), tmp_path)
    assert fault.value.exit_code == 4 and "start it, correct tracking.uri" in str(fault.value)
    monkeypatch.setattr("mlflow.tracking.MlflowClient", None)  # nobody may ask again
    check_store(config(uri="http://127.0.0.1:9"), tmp_path)
    about = {"name": "a run", "params": {}, "tags": {}, "results": tmp_path / "results"}
    with tracked_run(config(uri="http://127.0.0.1:9"), **about) as run:
        run.metrics({"speedup": 1.0})
    (said,) = [entry.message for entry in caplog.records if entry.levelno >= logging.WARNING]
    assert said.startswith("Tracking is off for this run; the results stay on disk. The tracking server")
    assert said.endswith(f"Upload them later: python -m specdec.sync {tmp_path}/results")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, made_database, monkeypatch):
    """SQLite opens a file in it, and fails later: it keeps its journal beside it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written"):
        check_store(config(uri=f"sqlite:///{tmp_path}/file/mlflow.db"), tmp_path)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: access(path, mode) and Path(path) != tmp_path)
    with pytest.raises(UsageError, match=r"mlflow\.db cannot be written, because its folder cannot"):
        check_store(config(), tmp_path)


@pytest.mark.slow
def test_six_first_runs_at_once(tmp_path):
    """Six processes find no database; all must end well, and say nothing: MLflow's own messages are held back."""
    importlib.import_module("mlflow.tracking")  # once, for all of them
    began = time.monotonic() + 0.5
    children = []
    for number in range(6):
        child = os.fork()
        if not child:
            code = 1
            try:
                streams = os.open(tmp_path / f"said{number}", os.O_WRONLY | os.O_CREAT)
                os.dup2(streams, 1), os.dup2(streams, 2)
                time.sleep(max(0.0, began - time.monotonic()))
                os.chdir(tmp_path)
                check_store(config(required=True), tmp_path)
                results = tmp_path / str(number)
                with tracked_run(config(required=True), name="n", params={}, tags={}, results=results) as run:
                    run.metrics({"speedup": 1.0})
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 6
    assert [(tmp_path / f"said{number}").read_text() for number in range(6)] == [""] * 6
    client, experiment = opened(locate(None, tmp_path), "tests")
    assert [run.info.status for run in client.search_runs([experiment])] == ["FINISHED"] * 6


def test_the_environments_store_and_experiment_are_taken(monkeypatch, group_values):
    def kept() -> tuple[str | None, str]:
        chosen = group_values("tracking", "mlflow")
        return chosen["uri"], chosen["experiment"]

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    assert kept() == (None, "specdec")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking:5000")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    assert kept() == ("http://tracking:5000", "mine")
    assert locate("", Path("/tmp")) == locate(None, Path("/tmp"))
