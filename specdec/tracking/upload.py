"""Uploads runs to an MLflow store from the records and the files in their folders, live and late alike.

Everything may be repeated: runs are found again by their id, metrics keep their times, a second upload changes nothing.
`mirror.json` in the run's folder says which stores have the run, under which number, and if they have all of it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.errors import UsageError
from specdec.text.writing import read_json, write_json
from specdec.tracking.record import JOURNAL, METRICS, RECORD, LoggedPoints, RunRecord
from specdec.tracking.store import Store, alive, fault, locate, locked, opened, reap, reraise_interruption
from specdec.tracking.views import EXPERIMENT, NOTE, RUN, views

MIRRORS = "mirror.json"
ID = "specdec.mirror"  # tag: the record's id, by which a run is found that a store made but could not answer for
WRITER = "specdec.tracking.writer"  # tag: `incomplete` if a store failed, `synced` once the rest was uploaded
ARTIFACTS = ("*.parquet", "*.jsonl", "*.json", "*.csv", "*.html", "*.md", "config.yaml", "figures/**/*", "trees/*.yaml")
_OWN = re.compile(rf"\bpart|^({RECORD}|{METRICS}|{JOURNAL}|{MIRRORS})$")  # files that no store gets
BATCH = 1000  # metrics in one request, the limit of MLflow
PARAMETERS = 100  # in one request
# Told apart by readers with any colour vision (Okabe and Ito).
_COLOURS = ("#000000", "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
_TOLD_OF_CURVES = ("drafter", "model", "gamma", "specdec.overrides")


class Upload:
    """One run of a store (its client, name and number of the experiment), and the children that carry its curves."""

    def __init__(self, client: Any, store: Store, experiment: tuple[str, str], record: RunRecord) -> None:
        self._client, self.store, self._record = client, store, record
        self._name, self.experiment_id = experiment
        self.run_id = ""  # the run's number in the store; "" until it was made
        self.children: dict[str, str] = {}  # their numbers, by the name of their line
        self._parent: str | None = None
        self._incomplete = False  # a store failed before
        self._sent: dict[str, Any] | None = None  # what the store has; None if that is not known

    def send(self) -> None:
        """Write everything that the record says and the store has not got. What it has already stays as it is, also
        where an earlier call broke off and it is not known what that was.
        """
        record, sent = self._record, self._sent
        self._sent = None
        if sent is None:
            self._find()
            sent = {"tags": {}, "params": {}, "dataset": None, "lines": 0, "files": 0, "status": None}
        if not record.discarded:
            self._send(sent)
        elif self.run_id:
            self._client.delete_run(self.run_id)
        self._sent = sent
        ended = record.discarded or record.status is not None
        complete = ended and (record.parent is None or self._parent is not None)
        own = {"id": record.id, "experiment": self._name, "run_id": self.run_id, "complete": complete}
        known = read_json(record.folder / MIRRORS) or {}
        if known.get(self.store.shown) != own:
            write_json(record.folder / MIRRORS, {**known, self.store.shown: own})

    def _send(self, sent: dict[str, Any]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag, Param, RunTag

        client, record = self._client, self._record
        nested = {"mlflow.parentRunId": self._parent} if self._parent else {}
        tags = {**record.tags, **nested, ID: record.id}
        if not self.run_id:
            self.run_id = client.create_run(self.experiment_id, record.began, tags, record.name).info.run_id
            sent["tags"], sent["status"] = dict(tags), "RUNNING"
        if record.status is None and sent["status"] != "RUNNING":
            client.update_run(self.run_id, status="RUNNING")
            sent["status"] = "RUNNING"
        if sent["params"] != record.params:
            params = [Param(name, value) for name, value in record.params.items()]
            for start in range(0, len(params), PARAMETERS):
                client.log_batch(self.run_id, params=params[start : start + PARAMETERS])
            sent["params"] = record.params
        if NOTE in tags:
            tags[NOTE] = tags[NOTE].replace(RUN, self.run_id).replace(EXPERIMENT, self.experiment_id)
        if changed := [RunTag(name, value) for name, value in tags.items() if sent["tags"].get(name) != value]:
            client.log_batch(self.run_id, tags=changed)
            sent["tags"] = tags
        if record.dataset is not None and record.dataset != sent["dataset"]:
            context = InputTag("mlflow.data.context", "evaluation")
            client.log_inputs(self.run_id, [DatasetInput(Dataset(**record.dataset), [context])])
            sent["dataset"] = record.dataset
        for logged in record.logged[sent["lines"] :]:
            self._log(logged)
            sent["lines"] += 1
        if record.files > sent["files"]:
            paths = {path for pattern in ARTIFACTS for path in record.folder.glob(pattern) if path.is_file()}
            for path in sorted(path for path in paths if not _OWN.search(path.name)):
                inside = path.parent.relative_to(record.folder).as_posix()
                client.log_artifact(self.run_id, str(path), None if inside == "." else inside)
            sent["files"] = record.files
        if record.status is not None and record.status != sent["status"]:
            if record.lines:
                own, of_lines = record.names(False), record.names(True)
                known = client.get_experiment(self.experiment_id).tags
                ended = record.ended or record.began
                for name, value in views(self.experiment_id, self.run_id, own, of_lines, ended).items():
                    if name != NOTE or name not in known:  # a note that somebody wrote stays
                        client.set_experiment_tag(self.experiment_id, name, value)
            client.set_terminated(self.run_id, record.status, record.ended)
            sent["status"] = record.status
        if self._incomplete:
            self.tag(WRITER, "synced")
            self._incomplete = False

    def tag(self, name: str, value: str) -> None:
        """Set a tag that is no part of the record, such as the heartbeat."""
        self._client.set_tag(self.run_id, name, value)

    def abandon(self) -> None:
        """Try once to mark the run as incomplete: that one call failed does not mean that all do."""
        if not self.run_id:
            return
        try:
            self.tag(WRITER, "incomplete")
            self._client.set_terminated(self.run_id, "FAILED")
        except Exception as error:
            reraise_interruption(error)

    def _log(self, logged: LoggedPoints) -> None:
        """Log metrics on the run, or on the child of their line, which is made if there is none."""
        from mlflow.entities import Metric

        run_id = self.run_id if logged.line is None else self.children.get(logged.line)
        if run_id is None:
            line = str(logged.line)
            about = {name: value for name, value in self._record.tags.items() if name in _TOLD_OF_CURVES}
            tags = {
                **about,
                "specdec.role": "curve",
                "specdec.line": line,
                "mlflow.runColor": _COLOURS[self._record.lines.index(line) % len(_COLOURS)],
                "mlflow.parentRunId": self.run_id,
                ID: f"{self._record.id}/{line}",
            }
            # The child is named for its line and what it is of, such as `measured: ngram on pocket, gamma 4`.
            names = (about[key].rstrip("/").rpartition("/")[2] for key in ("drafter", "model") if key in about)
            gamma = f"gamma {about['gamma']}" if "gamma" in about else ""
            name = ": ".join(filter(None, (line, ", ".join(filter(None, (" on ".join(names), gamma))))))
            child = self._client.create_run(self.experiment_id, logged.time, tags, name)
            run_id = self.children[line] = child.info.run_id
            self._client.set_terminated(run_id, "FINISHED", logged.time)  # at once: it can be logged to after its end
        metrics = [Metric(name, value, logged.time, step) for name, step, value in logged.points]
        for start in range(0, len(metrics), BATCH):
            self._client.log_batch(run_id, metrics=metrics[start : start + BATCH])

    def _find(self) -> None:
        """Find the run, its children and its sweep in the store, which may have made them without an answer."""
        number, parent = self._record.id, self._record.parent
        self.run_id, self.children = "", {}
        for run in self._client.search_runs([self.experiment_id], f"tags.`{ID}` LIKE '{number}%'", max_results=1000):
            line = run.data.tags[ID].removeprefix(number).removeprefix("/")
            if not line:
                self.run_id, self._incomplete = run.info.run_id, run.data.tags.get(WRITER) == "incomplete"
                continue
            self.children[line] = run.info.run_id
            if run.info.status == "RUNNING":
                self._client.set_terminated(run.info.run_id, "FINISHED", run.info.start_time)
        if parent is not None:
            sweeps = self._client.search_runs([self.experiment_id], f"tags.`{ID}` = '{parent}'", max_results=1)
            self._parent = sweeps[0].info.run_id if sweeps else None


@dataclass(frozen=True)
class Uploaded:
    """The outcome for one folder: `done` is `uploaded`, `complete` (nothing was missing) or `running` (left alone)."""

    folder: Path
    done: str
    store: str
    run_id: str = ""


def run_folders(folders: Sequence[Path]) -> list[Path]:
    """Return the run folders in and below each folder, at least one; those of sweeps stand before their cells."""
    holding: dict[Path, None] = {}
    for folder in folders:
        below = sorted({path.parent for name in (RECORD, JOURNAL) for path in folder.rglob(name)})
        if not below:
            raise UsageError(
                f"{folder} has no {RECORD}, so there is nothing to upload: name the output folder of a run, or of a "
                "sweep."
            )
        holding |= dict.fromkeys(below)
    return list(holding)


def logged_folders(above: Sequence[Path]) -> list[Path]:
    """Return the run folders below some folders, there or not, without the runs that were to be logged nowhere."""
    holding = [folder for folder in above if any(any(folder.rglob(name)) for name in (RECORD, JOURNAL))]
    return [folder for folder in run_folders(holding) if (record := RunRecord.read(folder)) and record.store]


def upload(folders: Sequence[Path], uri: str | None = None, experiment: str | None = None) -> Iterator[Uploaded]:
    """Complete the runs of some folders, as `run_folders` orders them, and yield what was done: each in the store at an
    address, and the experiment of a name; None for those that it was to be logged to. Raises UsageError,
    EnvironmentFault: the store cannot be used, or does not answer.
    """
    from filelock import FileLock
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    reaped: set[tuple[str, str]] = set()
    for folder in folders:
        with FileLock(folder / ".tracking.lock", timeout=300):
            record = RunRecord.read(folder)
            if record is None:
                continue
            if uri is None and "://***@" in record.store:
                raise UsageError(
                    f"{folder} was to be logged to {record.store}, and its password is not kept: give the address with "
                    "--tracking-uri."
                )
            store = locate(uri or record.store or None, Path.cwd())
            name = experiment or record.experiment
            known = (read_json(folder / MIRRORS) or {}).get(store.shown, {})
            finished = record.status is not None or record.discarded
            if finished and known.get("complete") and (known.get("id"), known["experiment"]) == (record.id, name):
                yield Uploaded(folder, "complete", store.shown, known["run_id"])
                continue
            touched = max(path.stat().st_mtime for path in folder.glob("*.json*") if path.is_file())
            if not finished and alive(record.tags, touched):
                yield Uploaded(folder, "running", store.shown)
                continue
            with locked(store):
                client, experiment_id = opened(store, name)
                if (store.uri, name) not in reaped:
                    reap(client, experiment_id)
                    reaped.add((store.uri, name))
            if not finished:  # its process was killed, and could not say so
                record.status, record.ended = "KILLED", int(touched * 1000)
                record.save()
            run = Upload(client, store, (name, experiment_id), record)
            try:
                run.send()
            except (MlflowException, SQLAlchemyError, OSError) as error:
                reraise_interruption(error)
                raise fault(store, error) from None
        yield Uploaded(folder, "uploaded", store.shown, run.run_id)
