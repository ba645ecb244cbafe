"""Reads runs from MLflow: the runs of an experiment as a table, one run as a `Run`, the files of a study. No store is
changed or created. MLflow is imported inside functions, so that commands start fast.
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

from .runs import COMMAND, Run, current_name, missing_file, open_folder

RUN_ID = re.compile(r"[0-9a-f]{32}")
MAIN = "tags.`specdec.role` = 'main'"


class _Store:
    """A tracking store that is only read; whatever MLflow raises becomes a UsageError of one sentence."""

    def __init__(self, tracking_uri: str) -> None:
        store = locate(tracking_uri, Path.cwd())
        self.uri = store.shown  # its address, to show
        revision = None if store.database is None else schema_of(store.database)
        if store.database is not None and revision is None:
            raise UsageError(f"There is no MLflow database {store.database}: `{COMMAND}` makes one.")
        check_driver(store)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="IProgress not found")  # tqdm's, in a notebook
            check_schema(store, revision)
            quieten()
            from mlflow.tracking import MlflowClient

        self._client = self._ask(MlflowClient, tracking_uri=store.uri)

    def ask(self, question: str, *args: Any, **kwargs: Any) -> Any:
        """Return what a method of MLflow's client answers."""
        return self._ask(getattr(self._client, question), *args, **kwargs)

    def _ask(self, question: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return question(*args, **kwargs)
        except SpecdecError:
            raise
        except Exception as error:  # MLflow's, SQLAlchemy's, a missing driver's, the network's
            raise UsageError(f"The tracking store {self.uri} did not answer: {reason(error)}.") from error

    def runs(self, experiment: str, condition: str) -> list[Any]:
        """Return an experiment's runs that meet a condition, newest first."""
        known = self.ask("get_experiment_by_name", experiment)
        runs: list[Any] = []
        token: str | None = None
        newest_first: dict[str, Any] = {"filter_string": condition, "order_by": ["attributes.start_time DESC"]}
        while known is not None:
            page = self.ask("search_runs", [known.experiment_id], **newest_first, max_results=1000, page_token=token)
            runs.extend(page)
            token = page.token
            if not token:
                break
        return runs

    def files(self, run_id: str, folder: str | None = None) -> list[str]:
        return [item.path for item in self.ask("list_artifacts", run_id, folder)]

    def fetch(self, run_id: str, name: str) -> Path:
        """Return the path of an artifact on this machine. UsageError if the run has none of that name."""
        if name not in self.files(run_id, name.rpartition("/")[0] or None):
            raise UsageError(missing_file(name, f"Run {run_id} in {self.uri}"))
        return Path(self.ask("download_artifacts", run_id, name))


def load_runs(tracking_uri: str, experiment: str) -> pd.DataFrame:
    """Return the main runs of an experiment, newest first, indexed by run id, with name, status, start_time, params.*,
    metrics.*, tags.*, as far as any run has them. UsageError for a store or experiment that does not exist or has no
    run.
    """
    store = _Store(tracking_uri)
    runs = store.runs(experiment, MAIN)
    if not runs:
        known = store.ask("get_experiment_by_name", experiment)
        if known is None:
            names = [item.name for item in store.ask("search_experiments")]
            raise UsageError(
                f"No experiment {experiment!r} in {store.uri}.{near_misses(experiment, names)} It has: "
                f"{', '.join(sorted(names))}. `{COMMAND} tracking.experiment={experiment}` makes one."
            )
        if known.lifecycle_stage == "deleted":
            raise UsageError(
                f"The experiment {experiment!r} was deleted: restore it with "
                f"`mlflow experiments restore --experiment-id {known.experiment_id}`."
            )
        raise UsageError(
            f"The experiment {experiment!r} in {store.uri} has no main run: "
            f"`{COMMAND} tracking.experiment={experiment}` makes one."
        )
    rows = [
        {
            "run_id": run.info.run_id,
            "name": run.info.run_name,
            "status": run.info.status,
            "start_time": pd.Timestamp(run.info.start_time, unit="ms", tz="UTC"),
            **{f"params.{key}": value for key, value in run.data.params.items()},
            **{f"metrics.{current_name(key)}": value for key, value in run.data.metrics.items()},
            **{f"tags.{key}": value for key, value in run.data.tags.items()},
        }
        for run in runs
    ]
    return pd.DataFrame(rows).set_index("run_id")


def open_runs(tracking_uri: str, chosen: Sequence[str]) -> list[Run]:
    """Return runs by their ids in a store, or by their folders. UsageError if one is neither."""
    return [open_run(tracking_uri, name) if RUN_ID.fullmatch(name) else open_folder(name) for name in chosen]


def open_run(tracking_uri: str, run_id: str) -> Run:
    """Return one run with its curves; its files are fetched when asked for. UsageError if the store lacks it."""
    store = _Store(tracking_uri)
    run = store.ask("get_run", run_id)
    names = {key: current_name(key) for key in run.data.metrics}
    curves: dict[str, dict[int, float]] = {}
    for key, name in names.items():
        if "curve" in name.split("/"):  # also drafter/NAME/curve/*
            points = store.ask("get_metric_history", run_id, key)
            # The last value counts if a step was logged twice.
            ordered = sorted(points, key=lambda point: (point.step, point.timestamp))
            curves[name] = {int(point.step): float(point.value) for point in ordered}
    return Run(
        name=str(run.info.run_name),
        source=f"run {run_id} in {store.uri}",
        status=run.info.status,
        params=dict(run.data.params),
        metrics={names[key]: value for key, value in run.data.metrics.items() if names[key] not in curves},
        curves=curves,
        fetch=partial(store.fetch, run_id),
    )


def study_ids(tracking_uri: str, name: str, kind: str = "") -> list[str]:
    """Return the run id `name` if it is a study's, else those of an experiment's finished studies, newest last."""
    store = _Store(tracking_uri)
    if RUN_ID.fullmatch(name):
        return [name] if "specdec.study" in store.ask("get_run", name).data.tags else []
    condition = f"tags.`specdec.study` = '{kind}'" if kind else "tags.`specdec.role` = 'study'"
    runs = store.runs(name, f"{condition} and attributes.status = 'FINISHED'")
    return [run.info.run_id for run in reversed(runs)]


def files_of_study(tracking_uri: str, run_id: str) -> dict[str, Path]:
    """Return the paths of `study.json` and of the tables of the study with this run id, by file name."""
    store = _Store(tracking_uri)
    names = [name for name in store.files(run_id) if name == "study.json" or name.endswith(".parquet")]
    return {name: Path(store.ask("download_artifacts", run_id, name)) for name in names}
