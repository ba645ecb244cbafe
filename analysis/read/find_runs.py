"""Finds the runs and studies that a user names by a folder, a sweep's folder, an MLflow run id or an experiment, and
reads those that MLflow has, and finished studies. No store is changed or created. MLflow is imported inside functions,
so that commands start fast.
"""

import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from pydantic import TypeAdapter

from specdec.errors import SpecdecError, UsageError, near_misses
from specdec.tracking.store import check_driver, check_file, locate, quieten, reason

from ..sections import About, Findings, FinishedStudy, registered
from .runs import COMMAND, Run, current_name, missing_file, open_folder

RUN_ID = re.compile(r"[0-9a-f]{32}")
MAIN = "tags.`specdec.role` = 'main'"
STUDY = "study.json"  # the file by which a study's folder is known
# The table of a run that ended, the part-files of one that was killed, the texts of an imported file, and load points.
DECODED = ("rounds.parquet", "rounds", "generations.jsonl", "loads.parquet")


class NamedRuns(NamedTuple):
    """The runs and studies that some names stand for, in order, each once, and sentences about what was left out."""

    runs: list[Run]
    studies: list[FinishedStudy]
    notes: list[str]


def find_runs(names: Sequence[str], tracking_uri: str) -> NamedRuns:
    """Return the runs and the finished studies of all names. A folder is taken before a run id, a run id before an
    experiment's name. UsageError, naming it, for a name that is none of these, or has neither a run nor a study.
    """
    runs: dict[str, Run] = {}
    studies: dict[str, FinishedStudy] = {}
    notes: list[str] = []
    for name in names:
        try:
            if Path(name).is_dir():
                named = _in_folder(Path(name))
            elif Path(name).exists():
                raise UsageError(
                    f"{name} is a file: name a run's output folder, or import foreign results with --import."
                )
            elif "/" in name or "\\" in name:
                raise UsageError(f"There is no folder {name}: name a run's output folder, a run id or an experiment.")
            else:
                named = _in_store(name, tracking_uri)
        except UsageError as error:
            if name in str(error):
                raise
            # The error may not name what was looked up, as where there is no store to look it up in.
            raise UsageError(
                f"There is no folder {name}, and it cannot be looked up as a run or an experiment. {error}"
            ) from None
        runs |= {run.source: run for run in named.runs if run.source not in runs}
        studies |= {study.source: study for study in named.studies if study.source not in studies}
        notes += named.notes
    return NamedRuns(list(runs.values()), list(studies.values()), notes)


def _in_folder(folder: Path) -> NamedRuns:
    """Return the folder's own run, or the runs of all sweep cells below it, and the studies in or below it."""
    holding = sorted((path.parent for path in folder.rglob(STUDY)), key=_natural)
    studies = [finished_study(path) for path in holding]
    decoded = sorted({path.parent for kind in DECODED for path in folder.rglob(kind)} - {*holding}, key=_natural)
    if studies and not decoded:
        return NamedRuns([], studies, [])
    if (folder / "config.yaml").is_file():
        return NamedRuns([open_folder(folder)], studies, [])
    configured = {path.parent for path in folder.rglob("config.yaml") if ".hydra" not in path.parts} - {*holding}
    runs = [open_folder(path) for path in decoded if path in configured]
    if not runs:
        raise UsageError(f"There is no run with rounds in or below {folder}: `{COMMAND}` makes one.")
    unfinished = sum(run.status != "FINISHED" for run in runs)
    notes = [f"{unfinished} of {len(runs)} runs below {folder} did not finish."] if unfinished else []
    if silent := len(configured) - len(runs):
        notes.append(f"{silent} of {len(configured)} runs below {folder} left no round and are not shown.")
    return NamedRuns(runs, studies, notes)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return the sort key of a path that puts cell 10 after cell 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in path.parts]


def _in_store(name: str, tracking_uri: str) -> NamedRuns:
    """Return the run or study of an id; else an experiment's studies and its finished main runs, oldest first."""
    studies = [logged_study(tracking_uri, run_id) for run_id in study_ids(tracking_uri, name)]
    if RUN_ID.fullmatch(name):
        return NamedRuns([] if studies else [open_run(tracking_uri, name)], studies, [])
    try:
        table = load_runs(tracking_uri, name)
    except UsageError:
        if studies:  # of an experiment without a main run
            return NamedRuns([], studies, [])
        raise
    finished = table[table["status"] == "FINISHED"]
    if finished.empty:
        raise UsageError(
            f"The experiment {name!r} has no finished run: `{COMMAND} tracking.experiment={name}` makes one."
        )
    left = len(table) - len(finished)
    note = f"{left} of {len(table)} runs of the experiment {name!r} did not finish and are not shown."
    runs = [open_run(tracking_uri, str(run_id)) for run_id in finished.index[::-1]]
    return NamedRuns(runs, studies, [note] if left else [])


def read_study(files: Mapping[str, Path], source: str) -> FinishedStudy:
    """Return a study from the paths of its files by name. UsageError for other content."""
    try:
        described = json.loads(files[STUDY].read_text(encoding="utf-8"))
        about = TypeAdapter(About).validate_python(described)
        tables = {path.stem: pd.read_parquet(path) for path in files.values() if path.suffix == ".parquet"}
        return FinishedStudy(str(described["study"]), tables, about, source)
    except (ValueError, TypeError, KeyError, AttributeError, OSError, RecursionError) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UsageError(
            f"{source} does not hold what a study writes ({what}): copy its files again, or run it again."
        ) from None


def finished_study(folder: Path | str) -> FinishedStudy:
    """Read a finished study from its output folder. UsageError if the folder holds no study."""
    files = (Path(folder) / STUDY, *Path(folder).glob("*.parquet"))
    return read_study({path.name: path for path in files}, str(folder))


def logged_study(tracking_uri: str, run_id: str) -> FinishedStudy:
    """Read a finished study that MLflow has. UsageError for files that hold something else."""
    store = _Store(tracking_uri)
    names = [name for name in store.files(run_id) if name == STUDY or name.endswith(".parquet")]
    files = {name: Path(store.ask(store.client.download_artifacts, run_id, name)) for name in names}
    return read_study(files, f"run {run_id}")


def latest_study(tracking_uri: str, experiment: str, kind: str) -> Findings:
    """Return the findings of the newest finished study of a kind that MLflow has. UsageError if there is none."""
    _, overlay = registered(kind)
    ids = study_ids(tracking_uri, experiment, kind)
    if not ids:
        raise UsageError(
            f"The experiment {experiment!r} has no finished study {kind!r}: "
            f"`python -m specdec.run +experiment={overlay}` makes one."
        )
    return logged_study(tracking_uri, ids[-1]).findings()


def chosen_studies(tracking_uri: str, chosen: Sequence[str]) -> list[FinishedStudy]:
    """Return the studies among what a person chose: run ids of the store, or folders."""
    studies = []
    for name in chosen:
        if (Path(name) / STUDY).is_file():
            studies.append(finished_study(name))
        elif RUN_ID.fullmatch(name) and study_ids(tracking_uri, name):
            studies.append(logged_study(tracking_uri, name))
    return studies


class _Store:
    """A tracking store that is only read; whatever MLflow raises becomes a UsageError of one sentence."""

    def __init__(self, tracking_uri: str) -> None:
        store = locate(tracking_uri, Path.cwd())
        self.uri = store.shown  # its address, to show
        check_driver(store)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="IProgress not found")  # tqdm's, in a notebook
            if not check_file(store):
                raise UsageError(f"There is no MLflow database {store.database}: `{COMMAND}` makes one.")
            quieten()
            from mlflow.tracking import MlflowClient

        self.client: Any = self.ask(MlflowClient, tracking_uri=store.uri)

    def ask(self, question: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return what a method of MLflow's `client` answers."""
        try:
            return question(*args, **kwargs)
        except SpecdecError:
            raise
        except Exception as error:  # MLflow's, SQLAlchemy's, a missing driver's, the network's
            raise UsageError(f"The tracking store {self.uri} did not answer: {reason(error)}.") from error

    def runs(self, experiment: str, condition: str) -> list[Any]:
        """Return an experiment's runs that meet a condition, newest first."""
        known = self.ask(self.client.get_experiment_by_name, experiment)
        if known is None:
            return []
        order = {"filter_string": condition, "order_by": ["attributes.start_time DESC"], "max_results": 1000}
        search = partial(self.ask, self.client.search_runs, [known.experiment_id], **order)
        page = search()
        runs = [*page]
        while page.token:
            page = search(page_token=page.token)
            runs += page
        return runs

    def files(self, run_id: str, folder: str | None = None) -> list[str]:
        return [item.path for item in self.ask(self.client.list_artifacts, run_id, folder)]

    def fetch(self, run_id: str, name: str) -> Path:
        """Return the path of an artifact on this machine. UsageError if the run has none of that name."""
        if name not in self.files(run_id, name.rpartition("/")[0] or None):
            raise UsageError(missing_file(name, f"Run {run_id} in {self.uri}"))
        return Path(self.ask(self.client.download_artifacts, run_id, name))


def load_runs(tracking_uri: str, experiment: str) -> pd.DataFrame:
    """Return the main runs of an experiment, newest first, indexed by run id, with name, status, start_time, params.*,
    metrics.*, tags.*, as far as any run has them. UsageError for no such store or experiment, or one without a run.
    """
    store = _Store(tracking_uri)
    runs = store.runs(experiment, MAIN)
    if not runs:
        known = store.ask(store.client.get_experiment_by_name, experiment)
        if known is None:
            names = [item.name for item in store.ask(store.client.search_experiments)]
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
    run = store.ask(store.client.get_run, run_id)
    names = {key: current_name(key) for key in run.data.metrics}
    curves: dict[str, dict[int, float]] = {}
    for key, name in names.items():
        if "curve" in name.split("/"):  # also drafter/NAME/curve/*
            points = store.ask(store.client.get_metric_history, run_id, key)
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
        return [name] if "specdec.study" in store.ask(store.client.get_run, name).data.tags else []
    condition = f"tags.`specdec.study` = '{kind}'" if kind else "tags.`specdec.role` = 'study'"
    return [run.info.run_id for run in reversed(store.runs(name, f"{condition} and attributes.status = 'FINISHED'"))]
