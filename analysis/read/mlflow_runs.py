"""Reads runs from MLflow: the runs of an experiment as a table, one run as a `Run`, the files of a study.

Nothing is written and no store is changed or created. MLflow is imported inside functions, so that commands start fast.
"""

import re
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from specdec.errors import SpecdecError, UsageError, near_misses
from specdec.tracking.store import check_driver, check_schema, locate, quieten, reason, schema_of

from .metric_names import current_name, current_names
from .runs import COMMAND, Run, missing_file, open_folder


def load_runs(tracking_uri: str, experiment: str) -> pd.DataFrame:
    """Return the main runs of an experiment, newest first, indexed by run id.

    Columns: name, status, start_time, params.*, metrics.*, tags.*, as far as any run has them. UsageError for a store
    or an experiment that does not exist or has no main run.
    """
    client, uri = _client(tracking_uri)
    runs = _main_runs(client, uri, experiment)
    rows = [
        {
            "run_id": run.info.run_id,
            "name": run.info.run_name,
            "status": run.info.status,
            "start_time": pd.Timestamp(run.info.start_time, unit="ms", tz="UTC"),
            **{f"params.{key}": value for key, value in run.data.params.items()},
            **{f"metrics.{key}": value for key, value in current_names(run.data.metrics).items()},
            **{f"tags.{key}": value for key, value in run.data.tags.items()},
        }
        for run in runs
    ]
    return pd.DataFrame(rows).set_index("run_id")


def latest_run(tracking_uri: str, experiment: str, drafter: str | None = None) -> Run:
    """Return the newest main run that finished, of `drafter` if given. UsageError if there is none."""
    table = load_runs(tracking_uri, experiment)
    table = table[table["status"] == "FINISHED"]
    if drafter is not None:
        column = table.get("params.drafter.name", pd.Series(index=table.index, dtype=object))
        table = table[column == drafter]
    if table.empty:
        command = f"`python -m specdec.run +drafter={drafter or 'ngram'}`"
        what = "finished run" if drafter is None else f"finished run of drafter {drafter!r}"
        raise UsageError(f"The experiment {experiment!r} has no {what}: {command} makes one.")
    return open_run(tracking_uri, str(table.index[0]))


def study_files(tracking_uri: str, experiment: str, study: str, overlay: str) -> dict[str, Path]:
    """Return the paths of `study.json` and of the tables of the newest finished run of a study, by file name.

    UsageError for a store that does not exist or has no such run; `overlay` (of conf/experiment) would make one.
    """
    client, uri = _client(tracking_uri)
    runs = _studies(client, uri, experiment, f"tags.`specdec.study` = '{study}'", most=1)
    if not runs:
        raise UsageError(
            f"The experiment {experiment!r} has no finished study {study!r}: "
            f"`python -m specdec.run +experiment={overlay}` makes one."
        )
    return _files_of_study(client, uri, runs[0].info.run_id)


def study_ids(tracking_uri: str, name: str) -> list[str]:
    """Return the run id `name` if it is a study's, or those of all finished studies of the experiment `name`, newest
    last. Empty where `name` is neither, or where there is no study.
    """
    client, uri = _client(tracking_uri)
    if RUN_ID.fullmatch(name):
        return [name] if "specdec.study" in _asked(uri, client.get_run, name).data.tags else []
    found = _studies(client, uri, name, "tags.`specdec.role` = 'study'", most=_MOST_STUDIES)
    return [run.info.run_id for run in reversed(found)]


def files_of_study(tracking_uri: str, run_id: str) -> dict[str, Path]:
    """Return the paths of `study.json` and of the tables of the study with this run id, by file name."""
    client, uri = _client(tracking_uri)
    return _files_of_study(client, uri, run_id)


def has_main_run(tracking_uri: str, experiment: str) -> bool:
    """Return True if the experiment exists and has a main run."""
    client, uri = _client(tracking_uri)
    found = _asked(uri, client.get_experiment_by_name, experiment)
    main = "tags.`specdec.role` = 'main'"
    return found is not None and bool(
        _asked(uri, client.search_runs, [found.experiment_id], filter_string=main, max_results=1)
    )


RUN_ID = re.compile(r"[0-9a-f]{32}")
_MOST_STUDIES = 1000  # of an experiment, that are looked at


def _studies(client: Any, uri: str, experiment: str, condition: str, most: int) -> list[Any]:
    """Return the finished studies of an experiment that meet a condition, newest first."""
    found = _asked(uri, client.get_experiment_by_name, experiment)
    if found is None:
        return []
    runs: list[Any] = _asked(
        uri,
        client.search_runs,
        [found.experiment_id],
        filter_string=f"{condition} and attributes.status = 'FINISHED'",
        order_by=["attributes.start_time DESC"],
        max_results=most,
    )
    return runs


def _files_of_study(client: Any, uri: str, run_id: str) -> dict[str, Path]:
    names = [item.path for item in _asked(uri, client.list_artifacts, run_id)]
    kept = [name for name in names if name == "study.json" or name.endswith(".parquet")]
    return {name: Path(_asked(uri, client.download_artifacts, run_id, name)) for name in kept}


def open_runs(tracking_uri: str, chosen: Sequence[str]) -> list[Run]:
    """Return runs by their ids in a store, or by their folders. UsageError if one is neither."""
    return [open_run(tracking_uri, each) if RUN_ID.fullmatch(each) else open_folder(each) for each in chosen]


def open_run(tracking_uri: str, run_id: str) -> Run:
    """Return one run with its curves; its files are fetched when asked for. UsageError if the store lacks it."""
    client, uri = _client(tracking_uri)
    run = _asked(uri, client.get_run, run_id)
    names = {key: current_name(key) for key in run.data.metrics}
    curves = {key: name for key, name in names.items() if "curve" in name.split("/")}  # also drafter/NAME/curve/*
    return Run(
        name=str(run.info.run_name),
        source=f"run {run_id} in {uri}",
        status=run.info.status,
        params=dict(run.data.params),
        metrics={names[key]: value for key, value in run.data.metrics.items() if key not in curves},
        curves={name: _history(client, uri, run_id, key) for key, name in curves.items()},
        fetch=partial(_download, client, uri, run_id),
    )


def _client(tracking_uri: str) -> tuple[Any, str]:
    """Return a client that only reads, and the address to show. A missing database is refused, never created."""
    store = locate(tracking_uri, Path.cwd())
    revision = None if store.database is None else schema_of(store.database)
    if store.database is not None and revision is None:
        raise UsageError(f"There is no MLflow database {store.database}: `{COMMAND}` makes one.")
    check_driver(store)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")  # tqdm's, in a notebook
        check_schema(store, revision)
        quieten()
        from mlflow.tracking import MlflowClient

    return _asked(store.shown, partial(MlflowClient, tracking_uri=store.uri)), store.shown


def _asked(uri: str, question: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what MLflow answers; whatever it raises becomes a UsageError of one sentence."""
    try:
        return question(*args, **kwargs)
    except SpecdecError:
        raise
    except Exception as error:  # MLflow's, SQLAlchemy's, a missing driver's, the network's
        raise UsageError(f"The tracking store {uri} did not answer: {reason(error)}.") from error


def _main_runs(client: Any, uri: str, experiment: str) -> list[Any]:
    found = _asked(uri, client.get_experiment_by_name, experiment)
    if found is None:
        names = [item.name for item in _asked(uri, client.search_experiments)]
        hint = near_misses(experiment, names)
        raise UsageError(
            f"No experiment {experiment!r} in {uri}.{hint} It has: {', '.join(sorted(names))}. "
            f"`{COMMAND} tracking.experiment={experiment}` makes one."
        )
    if found.lifecycle_stage == "deleted":
        raise UsageError(
            f"The experiment {experiment!r} was deleted: restore it with "
            f"`mlflow experiments restore --experiment-id {found.experiment_id}`."
        )
    runs: list[Any] = []
    token: str | None = None
    while True:
        page = _asked(
            uri,
            client.search_runs,
            [found.experiment_id],
            filter_string="tags.`specdec.role` = 'main'",
            order_by=["attributes.start_time DESC"],
            page_token=token,
        )
        runs.extend(page)
        token = page.token
        if not token:
            break
    if not runs:
        raise UsageError(
            f"The experiment {experiment!r} in {uri} has no main run: "
            f"`{COMMAND} tracking.experiment={experiment}` makes one."
        )
    return runs


def _history(client: Any, uri: str, run_id: str, key: str) -> dict[int, float]:
    """Return the values of a metric by step; the last one counts if a step was logged twice."""
    points = _asked(uri, client.get_metric_history, run_id, key)
    latest = sorted(points, key=lambda point: (point.step, point.timestamp))
    return {int(point.step): float(point.value) for point in latest}


def _download(client: Any, uri: str, run_id: str, name: str) -> Path:
    present = {item.path for item in _asked(uri, client.list_artifacts, run_id, name.rpartition("/")[0] or None)}
    if name not in present:
        raise UsageError(missing_file(name, f"Run {run_id} in {uri}"))
    return Path(_asked(uri, client.download_artifacts, run_id, name))
