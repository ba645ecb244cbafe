"""Logs a run: every line goes to the run's own journal first, and from there to MLflow, which is a mirror of it.

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
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from specdec.config import TrackingConfig
from specdec.errors import EnvironmentFault, Interrupted
from specdec.tracking.journal import Entry, Journal
from specdec.tracking.mirror import Mirror
from specdec.tracking.store import (
    HEARTBEAT,
    SQLITE,
    Store,
    Unreachable,
    locate,
    locked,
    opened,
    reap,
    reason,
    reraise_interruption,
    serving,
    this_process,
    unanswered,
)
from specdec.tracking.store import without_password as redacted

logger = logging.getLogger(__name__)

PARENT_RUN = "SPECDEC_PARENT_RUN"  # environment variable: the folder of the sweep that this process runs a cell of
SWEEP_CELL = "SPECDEC_SWEEP_CELL"  # environment variable: number of the sweep's cell that this process runs
CHART_VIEW = "#/experiments/{}/runs?workflowType=machine_learning&compareRunsMode=CHART"
HEARTBEAT_SECONDS = 30.0


class TrackedRun:
    """One run: its journal, and the store's mirror of it. Without a store only the journal is written, and without a
    folder for the journal nothing is.

    As a context it ends FINISHED, FAILED (with the tag `specdec.failure`) or, after a signal, KILLED.

    If the store fails, methods raise EnvironmentFault where tracking is required; otherwise the first fault is logged
    and nothing more is sent.
    """

    def __init__(self, journal: Journal, mirror: Mirror | None, link: str, required: bool) -> None:
        """
        Args:
            journal: one that was begun.
            link: address of the run's experiment; "" without a store.
        """
        self.link = link
        self._journal, self._mirror, self._required = journal, mirror, required
        self._known = mirror  # also once the store failed: what it has stays there
        self._overlaid: set[str] = set()
        self._colours: dict[str, str] = {}  # by line
        self._behind = False  # a signal arrived while the store was being written
        self._beaten = time.monotonic()

    @property
    def run_id(self) -> str:
        """The run's number in the store; "" without one."""
        return self._known.run_id if self._known else ""

    @property
    def short_link(self) -> str:
        """The first line of `link`, with a database below the working directory named from there; "" in a cell of a
        sweep, which says it once at its end.
        """
        if os.environ.get(PARENT_RUN):
            return ""
        return self.link.partition("\n")[0].replace(f"{SQLITE}{Path.cwd().resolve()}/", SQLITE)

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
        self._log({name: {step or 0: value} for name, value in values.items()}, {})

    def curves(self, curves: Mapping[str, Mapping[int, float | None]]) -> None:
        """Log curves on this run: {name: {step: value}}."""
        self._log(curves, {})

    def curve_children(self, key: str, lines: Mapping[str, Mapping[int, float | None]]) -> None:
        """Log every line under the same `key` on a child run of its own, so that one MLflow chart overlays them.

        A line that was logged before, under another key, keeps its child run. Name and tags of a child say of which
        drafter, model and gamma its line is, because a chart may show the lines of several runs.
        """
        self._overlaid.add(key)
        tags_of_run = self._journal.header.get("tags", {})
        about = {name: value for name, value in tags_of_run.items() if name in _TOLD_OF_CURVES}
        for line, points in lines.items():
            colour = self._colours.setdefault(line, _COLOURS[len(self._colours) % len(_COLOURS)])
            tags = {**about, "specdec.role": "curve", "specdec.line": line, "mlflow.runColor": colour}
            self._log({key: points}, {"line": line, "name": _line_name(line, about), "about": tags})

    def overlay(self, key: str) -> str:
        """Return the address of one chart with all lines that were logged under `key`, and under its `.ci_low` and
        `.ci_high`; "" if there are none.
        """
        if self._known is None or not self._known.children:
            return ""
        keys = [key, *sorted(self._overlaid & {f"{key}.ci_low", f"{key}.ci_high"})]
        view = {
            "runs": json.dumps(list(self._known.children.values())),
            "metric": json.dumps(key),
            "experiments": json.dumps([self._known.experiment_id]),
            "plot_metric_keys": json.dumps(keys),
            "plot_layout": "{}",
            "x_axis": "step",
            "show_point": "true",
            "workflowType": "machine_learning",  # not first: MLflow looks for the runs there
        }
        page = self.link.rpartition("\n")[2].partition("#/")[0]
        return f"{page}#/metric?" + "&".join(f"{name}={quote(value)}" for name, value in view.items())

    def dataset(self, name: str, sha256: str, rows: int, source: Mapping[str, Any]) -> None:
        """Log what the run reads as MLflow's dataset input; once, also where a run goes on.

        Args:
            rows: number of prompts or documents.
            source: where it comes from, as JSON can hold it.
        """
        described = {
            "name": name[:500],
            "digest": sha256[:36],  # all that MLflow has room for
            "source_type": "specdec",
            "source": redacted(json.dumps({**source, "sha256": sha256}, default=str)),
            "profile": json.dumps({"num_rows": rows}),
        }
        if not any(entry.get("dataset") == described for entry in self._journal.entries):
            self._write("logging the prompts", {"dataset": described})

    def artifacts(self) -> None:
        """Upload the files of the run's folder, as they are now."""
        if self._journal.folder is not None:
            self._write("uploading files", {"artifacts": True})

    def tags(self, values: Mapping[str, str]) -> None:
        accepted = {_accepted_name(name): redacted(str(value))[:5000] for name, value in values.items()}
        self._write("writing tags", {"tags": accepted})

    def heartbeat(self) -> None:
        """Log that the process is alive, at most twice a minute; call it between prompts, outside timing."""
        if self._mirror is not None and time.monotonic() - self._beaten >= HEARTBEAT_SECONDS:
            self._beaten = time.monotonic()
            try:
                self._mirror.tag("specdec.heartbeat", _now())
            except Exception as error:
                self._lose("writing the heartbeat", error)

    def end(self, status: str) -> None:
        """End the run as FINISHED, FAILED or KILLED; only with FINISHED a fault of a required store is an error."""
        self._required = self._required and status == "FINISHED"
        self._write("ending the run", {"end": status})

    def discard(self) -> None:
        """Delete a run whose work never began."""
        self._required = False
        self._write("deleting the run", {"discard": True})

    def _log(self, curves: Mapping[str, Mapping[int, float | None]], line: Mapping[str, Any]) -> None:
        points = [
            [_accepted_name(name), int(step), float(value)]
            for name, points in curves.items()
            for step, value in points.items()
            if value is not None and not math.isinf(value)
        ]
        self._write("logging metrics", {"metrics": points, **line})

    def _write(self, doing: str, entry: Entry) -> None:
        """Write a line to the journal, then to the store."""
        if not self._journal.entries:
            return
        entry = self._journal.append(entry)
        if self._mirror is None:
            return
        behind, self._behind = self._behind, True
        try:
            if behind:
                self._mirror.catch_up()
            else:
                self._mirror.apply(entry)
            self._behind = False
        except Exception as error:  # a store can raise anything
            self._lose(doing, error)

    def _lose(self, doing: str, error: Exception) -> None:
        """Go on without the store, or end the run where tracking is required."""
        reraise_interruption(error)
        mirror, self._mirror = self._mirror, None
        assert mirror is not None
        if not unanswered(mirror.store, error):  # nobody waits for a silent server twice
            mirror.abandon()
        if self._required:
            raise EnvironmentFault(
                f"Tracking is required and failed while {doing}: {reason(error)}.{_upload(self._journal.folder)}"
            ) from error
        logger.warning(
            "Tracking failed while %s and is off for the rest of this run; the results stay on disk. %s.%s",
            doing, reason(error), _upload(self._journal.folder),
        )  # fmt: skip


def check_store(config: TrackingConfig, folder: Path) -> None:
    """Make the store ready before any decoding, and close runs that dead processes left open.

    A server that does not answer is left to `tracked_run`, which goes on without it, unless tracking is required.

    Raises:
        UsageError: a file that is no MLflow database or has another schema, a deleted experiment, a server that
            refuses, a folder that cannot be written.
        EnvironmentFault: tracking is required and the server does not answer.
    """
    if not config.enabled:
        return
    store = locate(config.uri, folder)
    try:
        with locked(store):
            reap(*opened(store, config.experiment))
    except Unreachable:
        if config.required:
            raise


def tracked_run(
    config: TrackingConfig,
    *,
    name: str,
    params: Mapping[str, Any],
    tags: Mapping[str, str],
    folder: Path | None = None,
    results: Path | None = None,
    fresh: bool = False,
) -> TrackedRun:
    """Open a run; the caller uses it as a context, or calls `end`.

    Args:
        params: parameters with dotted keys.
        tags: tags beside role, host, process and heartbeat; `specdec.cell` identifies what was run.
        folder: folder that the command runs in; None for the working directory.
        results: the run's own folder, for its journal and the files to upload; None if it has none. A folder that has a
            journal already belongs to a run that goes on.
        fresh: begin another run although the folder has a journal.
    Raises:
        EnvironmentFault: tracking is required and the store fails.
    """
    journal = Journal(results)
    folder = folder or Path.cwd()
    store = locate(config.uri, folder) if config.enabled else None
    if journal.entries and not fresh and not journal.discarded:
        journal.append({"again": _process_tags()})
    elif config.enabled or results is not None:
        journal.begin(_header(config, store, name, params, tags, results))
    if store is None:
        return TrackedRun(journal, None, "", False)
    try:
        client, experiment_id = opened(store, config.experiment)
        mirror = Mirror(client, store, (config.experiment, experiment_id), journal)
        if len(journal.entries) == 1:
            mirror.apply(journal.entries[0])
        else:
            mirror.catch_up()
    except Exception as error:
        reraise_interruption(error)
        if config.required:
            raise EnvironmentFault(f"Tracking is required and no run could be opened: {reason(error)}.") from error
        logger.warning(
            "Tracking is off for this run; the results stay on disk. %s.%s", reason(error), _upload(results)
        )  # fmt: skip
        return TrackedRun(journal, None, "", False)
    return TrackedRun(journal, mirror, _link(store, experiment_id), config.required)


# Told apart by readers with any colour vision (Okabe and Ito).
_COLOURS = ("#000000", "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
_TOLD_OF_CURVES = ("drafter", "model", "gamma", "specdec.overrides")


def _header(
    config: TrackingConfig,
    store: Store | None,
    name: str,
    params: Mapping[str, Any],
    tags: Mapping[str, str],
    results: Path | None,
) -> dict[str, Any]:
    """Return the first line of a journal: all that makes the run in a store."""
    own = {"specdec.role": "main", **_process_tags(), "mlflow.source.name": "specdec", "mlflow.source.type": "LOCAL"}
    own["mlflow.user"] = _user()
    own |= {_accepted_name(key): redacted(str(value))[:5000] for key, value in tags.items()}
    sweep, parent = os.environ.get(PARENT_RUN), None
    if sweep and own["specdec.role"] in ("main", "study"):
        above = Journal(Path(sweep))
        if above.entries:
            parent = {"id": above.header["id"], "folder": os.path.relpath(sweep, results or Path.cwd())}
        own["specdec.sweep_cell"] = os.environ.get(SWEEP_CELL, "")
    return {
        "store": "" if store is None else store.shown,
        "experiment": config.experiment,
        "name": redacted(config.run_name or name),
        "params": {_accepted_name(key): redacted(str(value))[:6000] for key, value in params.items()},
        "tags": own,
        "parent": parent,
    }


def _upload(folder: Path | None) -> str:
    """Return the sentence on how a run's results get into the store later; "" where nothing was kept."""
    return "" if folder is None else f" Upload them later: python -m specdec.sync {shlex.quote(str(folder))}"


def _line_name(line: str, about: Mapping[str, str]) -> str:
    """Return the name of a curve's run, such as `measured: ngram on pocket, gamma 4`, from the tags of its run."""
    told = " on ".join(about[key].rstrip("/").rpartition("/")[2] for key in ("drafter", "model") if key in about)
    gamma = f"gamma {about['gamma']}" if "gamma" in about else ""
    return ": ".join(part for part in (line, ", ".join(part for part in (told, gamma) if part)) if part)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's process can have a number that no account has
        return "unknown"


def _process_tags() -> dict[str, str]:
    return {
        "specdec.host": socket.gethostname(),
        "specdec.process": this_process(),
        "specdec.heartbeat": _now(),
    }


def _link(store: Store, experiment_id: str) -> str:
    """Return the address of the chart view; for a database, preceded by the command that serves it."""
    view = CHART_VIEW.format(experiment_id)
    if store.is_server:
        return f"{store.shown}/{view}"
    return f"{serving(store)}\nhttp://127.0.0.1:5000/{view}"


def _accepted_name(name: str) -> str:
    """Make a name that MLflow accepts: it refuses most punctuation and names that are no plain path."""
    name = re.sub(r"[^\w.\-/ :]", "_", name)[:250] or "_"
    if posixpath.normpath(name) != name or name.startswith(("/", "..")) or name == ".":
        name = name.replace("/", "_").strip(".") or "_"
    return name


def _now() -> str:
    return time.strftime(HEARTBEAT, time.gmtime())
