"""Logs a run: what it says goes into the record in its own folder first, and from there to MLflow (`tracking.upload`).

A store that fails costs a warning and no measurement, unless `tracking.required` says otherwise; `specdec.sync` uploads
what it missed. Knows names, values and folders; nothing of decoding.
"""

import getpass
import json
import logging
import math
import os
import posixpath
import re
import shlex
import socket
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec.config import TrackingConfig
from specdec.errors import EnvironmentFault, Interrupted
from specdec.progress import verbose
from specdec.tracking import store as stores
from specdec.tracking.record import RunRecord, now_ms
from specdec.tracking.upload import Upload
from specdec.tracking.views import ACROSS, HEADLINE, overlay, view

logger = logging.getLogger(__name__)

PARENT_RUN = "SPECDEC_PARENT_RUN"  # environment variable: the folder of the sweep that this process runs a cell of
SWEEP_CELL = "SPECDEC_SWEEP_CELL"  # environment variable: number of the sweep's cell that this process runs
HEARTBEAT_SECONDS = 30.0


class TrackedRun:
    """One run: its record, and its upload to the store. Without a store only the record is written. As a context it
    ends FINISHED, FAILED (with the tag `specdec.failure`) or, after a signal, KILLED.

    If the store fails, methods raise EnvironmentFault where tracking is required; otherwise the first fault is logged
    and nothing more is sent.
    """

    def __init__(self, record: RunRecord, upload: Upload | None = None, link: str = "", required: bool = False):
        """Take a record that was begun; the upload and the address of its experiment, if there is a store."""
        self.link = link
        self._record, self._upload, self._required = record, upload, required
        self._known = upload  # also once the store failed: what it has stays there
        self._beaten = time.monotonic()

    @property
    def run_id(self) -> str:
        """The run's number in the store; "" without one."""
        return self._known.run_id if self._known else ""

    @property
    def shown_link(self) -> str:
        """`link` with `-v`; else its first line, with a database below the working directory named from there, and ""
        in a cell of a sweep, which says it once at its end.
        """
        if verbose():
            return self.link
        if os.environ.get(PARENT_RUN):
            return ""
        return self.link.partition("\n")[0].replace(f"{stores.SQLITE}{Path.cwd().resolve()}/", stores.SQLITE)

    def __enter__(self) -> "TrackedRun":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        status = "FINISHED" if error is None else "FAILED"
        if isinstance(error, (Interrupted, KeyboardInterrupt)):
            status = "KILLED"
        elif isinstance(error, Exception):
            self._required = False  # `error` has to be reported, not a fault of the store
            self.tags({"specdec.failure": f"{type(error).__name__}: {stores.reason(error)}"})
        self.end(status)

    def metrics(self, values: Mapping[str, float | None], step: int = 0) -> None:
        self.curves({name: {step: value} for name, value in values.items()})

    def curves(self, curves: Mapping[str, Mapping[int, float | None]], line: str | None = None) -> None:
        """Log curves on this run, or on the child run of a line: {name: {step: value}}. NaN is kept; None and
        infinities, which MLflow would turn into 1.8e308, are left out.
        """
        points = [
            (_accepted_name(name), int(step), float(value))
            for name, points in curves.items()
            for step, value in points.items()
            if value is not None and not math.isinf(value)
        ]
        self._record.log(points, line)
        self._send("logging metrics")

    def curve_children(self, key: str, lines: Mapping[str, Mapping[int, float | None]]) -> None:
        """Log every line under the same `key` on a child run of its own, so that one MLflow chart overlays them, and
        under `views.ACROSS` where its points stand in that chart.

        A line that was logged before, under another key, keeps its child run. Name and tags of a child say of which
        drafter, model and gamma its line is, because a chart may show the lines of several runs.
        """
        steps = {step for points in lines.values() for step in points}
        apart = (max(steps) - min(steps) or 1) / 80 if steps else 0.0
        order = list(dict.fromkeys((*self._record.lines, *lines)))
        for line, points in lines.items():
            self.curves({key: points, ACROSS: {step: step + apart * order.index(line) for step in points}}, line)

    def overlay(self, key: str) -> str:
        """Return the address of one chart with all lines that were logged under `key`; "" if there are none."""
        if self._known is None or not self._known.children:
            return ""
        page = self.link.rpartition("\n")[2].partition("#/")[0]
        return page + overlay(self._known.experiment_id, self.run_id, key)

    def dataset(self, prompts: Mapping[str, Any]) -> None:
        """Log the run's prompts, as `environment.json` has them, as MLflow's dataset; once, also where it goes on."""
        described = {
            "name": prompts["name"][:500],
            "digest": prompts["sha256"][:36],  # all that MLflow has room for
            "source_type": "specdec",
            "source": stores.without_password(json.dumps(dict(prompts), default=str)),
            "profile": json.dumps({"num_rows": prompts["count"]}),
        }
        self._tell("logging the prompts", dataset=described)

    def artifacts(self) -> None:
        """Upload the files of the run's folder, as they are now."""
        self._tell("uploading files", files=now_ms())

    def tags(self, values: Mapping[str, str]) -> None:
        self._tell("writing tags", tags={**self._record.tags, **_accepted(values, 5000)})

    def heartbeat(self) -> None:
        """Log that the process is alive, at most twice a minute; call it between prompts, outside timing."""
        if self._upload is not None and time.monotonic() - self._beaten >= HEARTBEAT_SECONDS:
            self._beaten = time.monotonic()
            try:
                self._upload.tag("specdec.heartbeat", time.strftime(stores.HEARTBEAT, time.gmtime()))
            except Exception as error:
                self._lose("writing the heartbeat", error)

    def end(self, status: str) -> None:
        """End the run as FINISHED, FAILED or KILLED; only with FINISHED a fault of a required store is an error."""
        self._required = self._required and status == "FINISHED"
        self._tell("ending the run", status=status, ended=now_ms())

    def discard(self) -> None:
        """Delete a run whose work never began."""
        self._required = False
        self._tell("deleting the run", discarded=True)

    def _tell(self, doing: str, **changes: Any) -> None:
        """Change the record, then the store."""
        for name, value in changes.items():
            setattr(self._record, name, value)
        self._record.save()
        self._send(doing)

    def _send(self, doing: str) -> None:
        if self._upload is None:
            return
        try:
            self._upload.send()
        except Exception as error:  # a store can raise anything
            self._lose(doing, error)

    def _lose(self, doing: str, error: Exception) -> None:
        """Go on without the store, or end the run where tracking is required."""
        stores.reraise_interruption(error)
        upload, self._upload = self._upload, None
        assert upload is not None
        if not stores.unanswered(upload.store, error):  # nobody waits for a silent server twice
            upload.abandon()
        why = f"{stores.reason(error)}.{_upload_later(self._record.folder)}"
        if self._required:
            raise EnvironmentFault(f"Tracking is required and failed while {doing}: {why}") from error
        logger.warning(
            "Tracking failed while %s and is off for the rest of this run; the results stay on disk. %s", doing, why
        )


def check_store(config: TrackingConfig, folder: Path) -> None:
    """Make the store ready before any decoding, and close runs that dead processes left open. Raises UsageError: a file
    that is no MLflow database or has another schema, a deleted experiment, a server that refuses, a folder that cannot
    be written.

    A server that does not answer is left to `tracked_run`, which goes on without it, unless tracking is required: then
    an EnvironmentFault says so.
    """
    if not config.enabled:
        return
    store = stores.locate(config.uri, folder)
    try:
        with stores.locked(store):
            stores.reap(*stores.opened(store, config.experiment))
    except stores.Unreachable:
        if config.required:
            raise


def tracked_run(
    config: TrackingConfig,
    *,
    name: str,
    params: Mapping[str, Any],
    tags: Mapping[str, str],
    results: Path,
    fresh: bool = False,
) -> TrackedRun:
    """Open a run; the caller uses it as a context, or calls `end`. Parameters have dotted keys. Tags stand beside role,
    host, process and heartbeat; `specdec.cell` identifies what was run. The run's own folder, `results`, is for its
    record and the files to upload; one that has a record already belongs to a run that goes on, unless a `fresh` one is
    to begin. Raises EnvironmentFault: tracking is required and the store fails.
    """
    store = stores.locate(config.uri, Path.cwd()) if config.enabled else None
    record = None if fresh else RunRecord.read(results)
    if record is not None and not record.discarded:
        record.tags |= _process_tags()
        record.status = record.ended = None
        record.save()
    else:
        try:
            user = getpass.getuser()
        except (OSError, KeyError):  # a container's process can have a number that no account has
            user = "unknown"
        source = {"mlflow.source.name": "specdec", "mlflow.source.type": "LOCAL", "mlflow.user": user}
        own = {"specdec.role": "main", **_process_tags(), **source, **_accepted(tags, 5000)}
        sweep, above = os.environ.get(PARENT_RUN), None
        if sweep and own["specdec.role"] in ("main", "study"):
            above = RunRecord.read(Path(sweep))
            own["specdec.sweep_cell"] = os.environ.get(SWEEP_CELL, "")
        record = RunRecord(
            folder=results,
            id=uuid.uuid4().hex,
            store="" if store is None else store.shown,
            experiment=config.experiment,
            name=stores.without_password(config.run_name or name),
            params=_accepted(params, 6000),
            tags=own,
            parent=None if above is None else above.id,
            began=now_ms(),
        )
        record.begin()
    if store is None:
        return TrackedRun(record)
    try:
        client, experiment_id = stores.opened(store, config.experiment)
        upload = Upload(client, store, (config.experiment, experiment_id), record)
        upload.send()
    except Exception as error:
        stores.reraise_interruption(error)
        why = stores.reason(error)
        if config.required:
            raise EnvironmentFault(f"Tracking is required and no run could be opened: {why}.") from error
        logger.warning("Tracking is off for this run; the results stay on disk. %s.%s", why, _upload_later(results))
        return TrackedRun(record)
    link = view(experiment_id, HEADLINE)  # of a database: behind the command that serves it
    link = f"{store.shown}/{link}" if store.is_server else f"{stores.serving(store)}\nhttp://127.0.0.1:5000/{link}"
    return TrackedRun(record, upload, link, config.required)


def _accepted(values: Mapping[str, Any], most: int) -> dict[str, str]:
    """Return tags or parameters as MLflow accepts them: without passwords, and of `most` characters at most."""
    return {_accepted_name(name): stores.without_password(str(value))[:most] for name, value in values.items()}


def _upload_later(folder: Path) -> str:
    """Return the sentence on how a run's results get into the store later."""
    return f" Upload them later: python -m specdec.sync {shlex.quote(str(folder))}"


def _process_tags() -> dict[str, str]:
    now = time.strftime(stores.HEARTBEAT, time.gmtime())
    return {"specdec.host": socket.gethostname(), "specdec.process": stores.this_process(), "specdec.heartbeat": now}


def _accepted_name(name: str) -> str:
    """Make a name that MLflow accepts: it refuses most punctuation and names that are no plain path."""
    name = re.sub(r"[^\w.\-/ :]", "_", name)[:250] or "_"
    if posixpath.normpath(name) != name or name.startswith(("/", "..")) or name == ".":
        name = name.replace("/", "_").strip(".") or "_"
    return name
