"""Writes runs to MLflow; no other file does. Knows names, values and folders; nothing of decoding.

Results are on disk before anything here is called, so a store that fails costs a warning and no measurement, unless
`tracking.required` says otherwise. MLflow is imported inside functions, because the import takes over a second.
"""

import json
import logging
import math
import os
import posixpath
import re
import shlex
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from specdec.config import TrackingConfig
from specdec.errors import EnvironmentFault, Interrupted
from specdec.tracking.store import Store, locate, locked, opened, reap, reason, reraise_interruption
from specdec.tracking.store import without_password as redacted

logger = logging.getLogger(__name__)

PARENT_RUN = "SPECDEC_PARENT_RUN"  # environment variable: id of the sweep's parent run; empty if tracking is off
SWEEP_CELL = "SPECDEC_SWEEP_CELL"  # environment variable: number of the sweep's cell that this process runs
ARTIFACTS = ("*.parquet", "*.jsonl", "*.json", "*.csv", "*.html", "*.md", "config.yaml", "figures/**/*", "trees/*.yaml")
CHART_VIEW = "#/experiments/{}/runs?workflowType=machine_learning&compareRunsMode=CHART"
BATCH = 1000  # metrics in one request, the limit of MLflow
HEARTBEAT_SECONDS = 30.0


class TrackedRun:
    """One MLflow run. Without tracking there is no run, and every method returns at once.

    As a context it ends FINISHED, FAILED (with the tag `specdec.failure`) or, after a signal, KILLED.

    If the store fails, methods raise EnvironmentFault where tracking is required; otherwise the first fault is logged
    and nothing more is written.
    """

    def __init__(
        self,
        client: Any,
        run_id: str,
        experiment_id: str,
        link: str,
        required: bool,
        about: Mapping[str, str] | None = None,
    ) -> None:
        """
        Args:
            about: tags that the runs of its curves carry too.
        """
        self.run_id, self.link = run_id, link
        self._about, self._overlaid = dict(about or {}), set[str]()
        self._client, self._experiment_id, self._required = client, experiment_id, required
        self._children: dict[str, str] = {}
        self._beaten = time.monotonic()

    def __enter__(self) -> "TrackedRun":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        status = "FINISHED" if error is None else "FAILED"
        if isinstance(error, (Interrupted, KeyboardInterrupt)):
            status = "KILLED"
        elif isinstance(error, Exception):
            self._required = False  # `error` has to be reported, not a fault of the store
            self.tags({"specdec.failure": f"{type(error).__name__}: {reason(error)}"})
        self.end(status)

    def metrics(self, values: Mapping[str, float | None], step: int | None = None) -> None:
        """Log numbers. NaN is kept; None and infinities, which MLflow would turn into 1.8e308, are left out."""
        self._log({name: {step or 0: value} for name, value in values.items()}, self.run_id)

    def curves(self, curves: Mapping[str, Mapping[int, float | None]]) -> None:
        """Log curves on this run: {name: {step: value}}."""
        self._log(curves, self.run_id)

    def curve_children(self, key: str, lines: Mapping[str, Mapping[int, float | None]]) -> None:
        """Log every line under the same `key` on a child run of its own, so that one MLflow chart overlays them.

        A line that was logged before, under another key, keeps its child run. Name and tags of a child say of which
        drafter, model and gamma its line is, because a chart may show the lines of several runs.
        """
        self._overlaid.add(key)
        for line, points in lines.items():
            if line not in self._children:
                self._write("making a curve's run", partial(self._add_child, line))
            if line in self._children:
                self._log({key: points}, self._children[line])

    def overlay(self, key: str) -> str:
        """Return the address of one chart with all lines that were logged under `key`, and under its `.ci_low` and
        `.ci_high`; "" if there are none.
        """
        if not self._children:
            return ""
        keys = [key, *sorted(self._overlaid & {f"{key}.ci_low", f"{key}.ci_high"})]
        view = {
            "runs": json.dumps(list(self._children.values())),
            "metric": json.dumps(key),
            "experiments": json.dumps([self._experiment_id]),
            "plot_metric_keys": json.dumps(keys),
            "plot_layout": "{}",
            "x_axis": "step",
            "show_point": "true",
        }
        page = self.link.rpartition("\n")[2].partition("#/")[0]
        return f"{page}#/metric?" + "&".join(f"{name}={quote(value)}" for name, value in view.items())

    def artifacts(self, folder: Path) -> None:
        """Upload the `ARTIFACTS` of a run's output folder, without the part files that only serve resumption."""
        files = {path for pattern in ARTIFACTS for path in folder.glob(pattern) if path.is_file()}
        for path in sorted(files):
            if not re.search(r"\bpart", path.name):
                self._write(f"uploading {path.name}", partial(self._upload, path, folder))

    def tags(self, values: Mapping[str, str]) -> None:
        self._write("writing tags", partial(self._set_tags, values))

    def heartbeat(self) -> None:
        """Log that the process is alive, at most twice a minute; call it between prompts, outside timing."""
        if time.monotonic() - self._beaten >= HEARTBEAT_SECONDS:
            self._beaten = time.monotonic()
            self.tags({"specdec.heartbeat": _now()})

    def end(self, status: str) -> None:
        """End the run as FINISHED, FAILED or KILLED; only with FINISHED a fault of a required store is an error."""
        self._required = self._required and status == "FINISHED"
        self._write("ending the run", lambda: self._client.set_terminated(self.run_id, status))

    def discard(self) -> None:
        """Delete a run whose work never began."""
        self._required = False
        self._write("deleting the run", lambda: self._client.delete_run(self.run_id))

    def _log(self, curves: Mapping[str, Mapping[int, float | None]], run_id: str) -> None:
        if self._client is None:
            return
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        batch = [
            Metric(_accepted_name(name), float(value), now, int(step))
            for name, points in curves.items()
            for step, value in points.items()
            if value is not None and not math.isinf(value)
        ]
        for start in range(0, len(batch), BATCH):
            part = batch[start : start + BATCH]
            self._write("logging metrics", partial(self._client.log_batch, run_id, metrics=part))
            if self._client is None:
                return

    def _add_child(self, line: str) -> None:
        tags = {**self._about, "specdec.role": "curve", "specdec.line": line, "mlflow.parentRunId": self.run_id}
        name = _line_name(line, self._about)
        child = self._client.create_run(self._experiment_id, run_name=name, tags=tags).info.run_id
        self._client.set_terminated(child, "FINISHED")  # at once: a run can be logged to after its end
        self._children[line] = child

    def _upload(self, path: Path, folder: Path) -> None:
        inside = path.parent.relative_to(folder).as_posix()
        self._client.log_artifact(self.run_id, str(path), None if inside == "." else inside)

    def _set_tags(self, values: Mapping[str, str]) -> None:
        from mlflow.entities import RunTag

        tags = [RunTag(_accepted_name(name), str(value)[:5000]) for name, value in values.items()]
        self._client.log_batch(self.run_id, tags=tags)

    def _write(self, doing: str, action: Callable[[], Any]) -> None:
        if self._client is None:
            return
        try:
            action()
        except Exception as error:  # a store can raise anything
            reraise_interruption(error)
            client, self._client = self._client, None
            _last_words(client, self.run_id)
            if self._required:
                raise EnvironmentFault(f"Tracking is required and failed while {doing}: {reason(error)}.") from error
            logger.warning(
                "Tracking failed while %s and is off for the rest of this run; the results stay on disk. %s.",
                doing, reason(error),
            )  # fmt: skip


def check_store(config: TrackingConfig, folder: Path) -> None:
    """Make the store ready before any decoding, and close runs that dead processes left open.

    Raises UsageError for a file that is no MLflow database or has another schema, a deleted experiment, a server that
    does not answer, a folder that cannot be written.
    """
    if config.enabled:
        store = locate(config.uri, folder)
        with locked(store):
            reap(*opened(store, config.experiment))


def tracked_run(
    config: TrackingConfig, *, name: str, params: Mapping[str, Any], tags: Mapping[str, str], folder: Path | None = None
) -> TrackedRun:
    """Open a run; the caller uses it as a context, or calls `end`.

    Args:
        params: parameters with dotted keys.
        tags: tags beside role, host, process and heartbeat; `specdec.cell` identifies what was run.
        folder: folder that the command runs in; None for the working directory.
    Raises:
        EnvironmentFault: tracking is required and the store fails.
    """
    off = TrackedRun(None, "", "", "", False)
    if not config.enabled:
        return off
    try:
        store = locate(config.uri, folder or Path.cwd())
        client, experiment_id = opened(store, config.experiment)
        all_tags = _own_tags() | {_accepted_name(key): str(value)[:5000] for key, value in tags.items()}
        if all_tags["specdec.role"] in ("main", "study") and os.environ.get(PARENT_RUN):
            all_tags["mlflow.parentRunId"] = os.environ[PARENT_RUN]
            all_tags["specdec.sweep_cell"] = os.environ.get(SWEEP_CELL, "")
        run_id = client.create_run(experiment_id, run_name=config.run_name or name, tags=all_tags).info.run_id
    except Exception as error:
        reraise_interruption(error)
        if config.required:
            raise EnvironmentFault(f"Tracking is required and no run could be opened: {reason(error)}.") from error
        logger.warning("Tracking is off for this run; the results stay on disk. %s.", reason(error))
        return off
    about = {key: value for key, value in all_tags.items() if key in _TOLD_OF_CURVES}
    run = TrackedRun(client, run_id, experiment_id, _link(store, experiment_id), config.required, about)
    run._write("logging parameters", lambda: _log_params(client, run_id, params))
    return run


_TOLD_OF_CURVES = ("drafter", "model", "gamma", "specdec.overrides")


def _line_name(line: str, about: Mapping[str, str]) -> str:
    """Return the name of a curve's run, such as `measured: ngram on pocket, gamma 4`, from the tags of its run."""
    told = " on ".join(about[key].rstrip("/").rpartition("/")[2] for key in ("drafter", "model") if key in about)
    gamma = f"gamma {about['gamma']}" if "gamma" in about else ""
    return ": ".join(part for part in (line, ", ".join(part for part in (told, gamma) if part)) if part)


def _own_tags() -> dict[str, str]:
    import psutil

    process = psutil.Process()
    return {
        "specdec.role": "main",
        "specdec.host": socket.gethostname(),
        "specdec.process": f"{process.pid}:{process.create_time():.0f}",
        "specdec.heartbeat": _now(),
        "mlflow.source.name": "specdec",
        "mlflow.source.type": "LOCAL",
    }


def _log_params(client: Any, run_id: str, params: Mapping[str, Any]) -> None:
    from mlflow.entities import Param

    batch = [Param(_accepted_name(key), redacted(str(value))[:6000]) for key, value in params.items()]
    for start in range(0, len(batch), 100):
        client.log_batch(run_id, params=batch[start : start + 100])


def _link(store: Store, experiment_id: str) -> str:
    """Return the address of the chart view; for a database, preceded by the command that serves it."""
    view = CHART_VIEW.format(experiment_id)
    if store.is_server:
        return f"{store.shown}/{view}"
    return f"mlflow ui --backend-store-uri {shlex.quote(store.shown)}\nhttp://127.0.0.1:5000/{view}"


def _accepted_name(name: str) -> str:
    """Make a name that MLflow accepts: it refuses most punctuation and names that are no plain path."""
    name = re.sub(r"[^\w.\-/ :]", "_", name)[:250] or "_"
    if posixpath.normpath(name) != name or name.startswith(("/", "..")) or name == ".":
        name = name.replace("/", "_").strip(".") or "_"
    return name


def _last_words(client: Any, run_id: str) -> None:
    """Try once to mark the run as incomplete: that one call failed does not mean that all do."""
    try:
        client.set_tag(run_id, "specdec.tracking.writer", "incomplete")
        client.set_terminated(run_id, "FAILED")
    except Exception as error:
        reraise_interruption(error)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
