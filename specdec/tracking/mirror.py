"""Repeats a run's journal in an MLflow store: the only code that writes to MLflow, for live runs and for late uploads.

Everything may be repeated: runs are found again by their id, metrics keep their times, a second upload changes nothing.
`mirror.json` in the run's folder says which stores have the run, under which number, and if they have all of it.
"""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specdec.text.writing import write_atomically
from specdec.tracking.journal import Entry, Journal
from specdec.tracking.store import Store, reraise_interruption

logger = logging.getLogger(__name__)

MIRRORS = "mirror.json"
ID = "specdec.mirror"  # tag: the journal's id, by which a run is found that a store made but could not answer for
WRITER = "specdec.tracking.writer"  # tag: `incomplete` if a store failed, `synced` once the rest was uploaded
ARTIFACTS = ("*.parquet", "*.jsonl", "*.json", "*.csv", "*.html", "*.md", "config.yaml", "figures/**/*", "trees/*.yaml")
BATCH = 1000  # metrics in one request, the limit of MLflow
PARAMETERS = 100  # in one request


class Mirror:
    """One run of a store, and the children that carry its curves.

    Attributes:
        run_id: the run's number in the store; "" until it was made.
        children: the numbers of the children, by the name of their line.
        complete: True if the store has all that the journal says.
    """

    def __init__(self, client: Any, store: Store, experiment: tuple[str, str], journal: Journal) -> None:
        """
        Args:
            experiment: name and number.
        """
        self._client, self.store, self._journal = client, store, journal
        self._name, self.experiment_id = experiment
        known = mirrors(journal.folder).get(store.shown, {})
        same = known.get("id") == journal.header["id"] and known.get("experiment") == self._name
        known = known if same else {}
        self.run_id = str(known.get("run_id", ""))
        self.children: dict[str, str] = dict(known.get("children", {}))
        self.complete = bool(known.get("complete", False))
        self._parent: str | None = known.get("parent")

    def catch_up(self) -> None:
        """Write everything that the journal says; what the store has already stays as it is."""
        entries = self._journal.entries
        if self._journal.discarded:
            self.apply(entries[-1])
            return
        self._find()
        uploads = [entry for entry in entries if "artifacts" in entry]
        for entry in entries:
            if "artifacts" not in entry or entry is uploads[-1]:
                self.apply(entry)

    def apply(self, entry: Entry) -> None:
        """Write one line of the journal."""
        if "begin" in entry:
            self._begin(entry)
        elif "again" in entry:
            self._client.update_run(self.run_id, status="RUNNING")
            self._set_tags(entry["again"])
            self._save(complete=False)
        elif "dataset" in entry:
            self._dataset(entry["dataset"])
        elif "metrics" in entry:
            self._metrics(entry)
        elif "tags" in entry:
            self._set_tags(entry["tags"])
        elif "artifacts" in entry:
            self._artifacts()
        elif "end" in entry:
            self._client.set_terminated(self.run_id, entry["end"], entry["time"])
            self._save(complete=self._has_parent)
        elif "discard" in entry:
            if self.run_id:
                self._client.delete_run(self.run_id)
            self._save(complete=True)

    def tag(self, name: str, value: str) -> None:
        """Set a tag that is no part of the journal, such as the heartbeat."""
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

    @property
    def _has_parent(self) -> bool:
        """True if the run stands below its sweep, where it has one."""
        return self._journal.header.get("parent") is None or self._parent is not None

    def _begin(self, entry: Entry) -> None:
        header = entry["begin"]
        self._parent = self._parent or self._parent_run(header.get("parent"))
        nested = {"mlflow.parentRunId": self._parent} if self._parent else {}
        tags = {**header["tags"], **nested, ID: header["id"]}
        if self.run_id:
            self._set_tags(nested)
        else:
            made = self._client.create_run(self.experiment_id, entry["time"], tags, header["name"])
            self.run_id = made.info.run_id
        self._save(complete=False)
        self._params(header["params"])

    def _params(self, params: Mapping[str, str]) -> None:
        from mlflow.entities import Param

        batch = [Param(name, value) for name, value in params.items()]
        for start in range(0, len(batch), PARAMETERS):
            self._client.log_batch(self.run_id, params=batch[start : start + PARAMETERS])

    def _dataset(self, described: Mapping[str, str]) -> None:
        """Log what the run reads as its input; a second time changes nothing."""
        from mlflow.entities import Dataset, DatasetInput, InputTag

        context = InputTag("mlflow.data.context", "evaluation")
        self._client.log_inputs(self.run_id, [DatasetInput(Dataset(**described), [context])])

    def _metrics(self, entry: Entry) -> None:
        from mlflow.entities import Metric

        run_id = self.run_id if entry.get("line") is None else self._child(entry)
        batch = [Metric(name, value, entry["time"], step) for name, step, value in entry["metrics"]]
        for start in range(0, len(batch), BATCH):
            self._client.log_batch(run_id, metrics=batch[start : start + BATCH])

    def _child(self, entry: Entry) -> str:
        """Return the number of the child that carries a line, made if there is none."""
        line = str(entry["line"])
        if line not in self.children:
            own = {"mlflow.parentRunId": self.run_id, ID: f"{self._journal.header['id']}/{line}"}
            child = self._client.create_run(self.experiment_id, entry["time"], {**entry["about"], **own}, entry["name"])
            self.children[line] = child.info.run_id
            self._save(complete=False)
            # At once: a run can be logged to after its end.
            self._client.set_terminated(child.info.run_id, "FINISHED", entry["time"])
        return self.children[line]

    def _set_tags(self, values: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        if values:
            tags = [RunTag(name, value) for name, value in values.items()]
            self._client.log_batch(self.run_id, tags=tags)

    def _artifacts(self) -> None:
        """Upload the `ARTIFACTS` of the run's folder, without the part files that only serve resumption."""
        folder = self._journal.folder
        assert folder is not None
        for path in uploaded_files(folder):
            inside = path.parent.relative_to(folder).as_posix()
            self._client.log_artifact(self.run_id, str(path), None if inside == "." else inside)

    def _find(self) -> None:
        """Find the run and its children where the store made them, but the answer was lost."""
        number = self._journal.header["id"]
        found = self._client.search_runs([self.experiment_id], f"tags.`{ID}` LIKE '{number}%'", max_results=1000)
        for run in found:
            line = run.data.tags[ID].removeprefix(number).removeprefix("/")
            if line:
                self.children.setdefault(line, run.info.run_id)
                if run.info.status == "RUNNING":
                    self._client.set_terminated(run.info.run_id, "FINISHED", run.info.start_time)
            else:
                self.run_id = self.run_id or run.info.run_id
        there = {run.info.run_id for run in found}
        if self.run_id not in there:  # deleted since, or another database of the same address
            self.run_id, self.children = "", {}

    def _parent_run(self, parent: Mapping[str, str] | None) -> str | None:
        """Return the number of the sweep's run in this store; None if it has none."""
        if parent is None:
            return None
        base = self._journal.folder or Path.cwd()
        known = mirrors(base / parent["folder"]).get(self.store.shown, {})
        if known.get("id") == parent["id"] and known.get("run_id"):
            return str(known["run_id"])
        found = self._client.search_runs([self.experiment_id], f"tags.`{ID}` = '{parent['id']}'", max_results=1)
        return found[0].info.run_id if found else None

    def _save(self, complete: bool) -> None:
        """Write down what the store has."""
        self.complete = complete
        folder = self._journal.folder
        if folder is None:
            return
        own = {
            "id": self._journal.header["id"],
            "experiment": self._name,
            "experiment_id": self.experiment_id,
            "run_id": self.run_id,
            "parent": self._parent,
            "children": self.children,
            "complete": complete,
        }
        text = json.dumps({**mirrors(folder), self.store.shown: own}, indent=1) + "\n"
        write_atomically(folder / MIRRORS, text)


def mirrors(folder: Path | None) -> dict[str, Any]:
    """Read which stores have the run of a folder, by their address; none if nothing was written or it is no JSON."""
    if folder is None:
        return {}
    try:
        found = json.loads((folder / MIRRORS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def uploaded_files(folder: Path) -> Sequence[Path]:
    """List the files of a run's folder that a store gets."""
    files = {path for pattern in ARTIFACTS for path in folder.glob(pattern) if path.is_file()}
    skipped = re.compile(r"\bpart|^(tracking\.jsonl|mirror\.json)$")
    return sorted(path for path in files if not skipped.search(path.name))
