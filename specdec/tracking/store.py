"""Finds the MLflow store and makes it ready: file, schema, experiment. `tracking.writer` writes the runs.

Every fault is a UsageError with its remedy, because all of this happens before any decoding. MLflow is imported inside
functions, because the import takes over a second.
"""

import logging
import os
import re
import shlex
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from specdec.errors import Interrupted, SpecdecError, UsageError

logger = logging.getLogger(__name__)

SQLITE = "sqlite:///"
ELSEWHERE = "name another store with tracking.uri=sqlite:///FILE"
SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # MLflow's own values (7 retries, 120 s each) block for minutes when a server goes away.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
}


@dataclass(frozen=True)
class Store:
    """The absolute address of a store; `database` and `artifacts` are None where a server decides."""

    uri: str
    database: Path | None
    artifacts: Path | None

    @property
    def shown(self) -> str:
        """The address without a password."""
        return without_password(self.uri)

    @property
    def is_server(self) -> bool:
        return self.uri.startswith(("http://", "https://"))


def without_password(text: str) -> str:
    """Replace user and password in an address by stars."""
    return re.sub(r"://[^/@\s]+@", "://***@", text)


def locate(uri: str | None, folder: Path) -> Store:
    """Return the store that `tracking.uri` means for a command that runs in `folder`; None is `mlflow.db` there.

    Raises UsageError for an address that is neither a database nor a server.
    """
    folder = folder.resolve()
    if uri is None:
        uri = f"{SQLITE}mlflow.db"
    if uri.startswith(("http://", "https://")):
        return Store(uri.rstrip("/"), None, None)
    if uri.startswith(SQLITE):
        name, _, options = uri.removeprefix(SQLITE).partition("?")
        if not name or name.startswith(":memory:"):
            raise UsageError(f"tracking.uri={uri} keeps nothing: name a file, as in {SQLITE}mlflow.db.")
        database = (folder / name).resolve()
        address = f"{SQLITE}{database}" + (f"?{options}" if options else "")
        return Store(address, database, database.parent / "mlartifacts")
    if "://" not in uri or uri.startswith("file:"):
        raise UsageError(
            f"tracking.uri={uri} is no store that specdec writes to: give a database such as "
            f"{SQLITE}mlflow.db, or the address of a server such as http://localhost:5000."
        )
    return Store(uri, None, folder / "mlartifacts")


@contextmanager
def locked(store: Store) -> Iterator[None]:
    """Let one process at a time use a database: where two create the schema at once, MLflow fails in all but one.

    Raises UsageError if the database's folder cannot be written.
    """
    if store.database is None:
        yield
        return
    from filelock import FileLock, Timeout

    quieten()  # imports MLflow before the lock is held
    lock = FileLock(store.database.parent / f".{store.database.name}.lock", timeout=300)
    try:
        store.database.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise UsageError(f"Another process has held {lock.lock_file} for five minutes: end it and try again.") from None
    except OSError as error:
        raise UsageError(
            f"The tracking database {store.database} cannot be written ({error.strerror}): "
            f"run specdec where you may write, or {ELSEWHERE}."
        ) from None
    try:
        yield
    finally:
        lock.release()


def opened(store: Store, experiment: str) -> tuple[Any, str]:
    """Open the store and return its client and the experiment's id; make schema and experiment if there are none.

    Raises UsageError if the store or the experiment cannot be used.
    """
    try:
        if store.database is not None:
            check_schema(store, schema_of(store.database))
        quieten()
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=store.uri)
        found = client.get_experiment_by_name(experiment)
        if found is None:
            return client, _created(client, store, experiment)
    except SpecdecError:
        raise
    except Exception as error:  # MLflow's, SQLAlchemy's, a missing driver's, the network's
        reraise_interruption(error)
        if store.is_server:
            raise UsageError(
                f"The tracking server {store.shown} cannot be used ({reason(error)}): start it, "
                "correct tracking.uri, or leave it out to log into ./mlflow.db."
            ) from None
        raise UsageError(f"The tracking store {store.shown} cannot be used: {reason(error)}.") from None
    if found.lifecycle_stage == "deleted":
        raise UsageError(
            f"The experiment {experiment!r} was deleted in {store.shown}: restore it with "
            f"`MLFLOW_TRACKING_URI={shlex.quote(store.shown)} mlflow experiments restore --experiment-id "
            f"{found.experiment_id}`, or choose another with tracking.experiment=NAME."
        )
    return client, found.experiment_id


def _created(client: Any, store: Store, experiment: str) -> str:
    from mlflow.exceptions import MlflowException

    try:
        return client.create_experiment(experiment, store.artifacts.as_uri() if store.artifacts else None)
    except MlflowException:
        found = client.get_experiment_by_name(experiment)  # another process was faster
        if found is None:
            raise
        return found.experiment_id


def schema_of(database: Path) -> str | None:
    """Return the MLflow schema revision of a file, without changing it; None for a new or empty file.

    Raises UsageError, with file and remedy, if MLflow did not make the file or it cannot be written.
    """
    remedy = f"move it away, or {ELSEWHERE}"
    if not database.exists():
        return None
    if not database.is_file():
        raise UsageError(f"The tracking database {database} is not a file: {remedy}.")
    if not os.access(database, os.R_OK | os.W_OK):
        raise UsageError(f"The tracking database {database} cannot be read and written: {remedy}.")
    with database.open("rb") as file:
        header = file.read(16)
    if not header:
        return None
    if header != b"SQLite format 3\0":
        raise UsageError(f"The tracking database {database} is not an MLflow database: {remedy}.")
    # mode=rw, not ro: after a kill SQLite must roll the journal back before it can read.
    connection = sqlite3.connect(f"file:{quote(str(database))}?mode=rw", uri=True, timeout=20)
    try:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables:
            return None
        if not {"alembic_version", "experiments", "runs"} <= tables:
            raise UsageError(f"The tracking database {database} is not an MLflow database: {remedy}.")
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        return str(row[0]) if row else "unknown"
    except sqlite3.DatabaseError as error:
        raise UsageError(f"The tracking database {database} cannot be used ({error}): {remedy}.") from None
    finally:
        connection.close()


def check_schema(store: Store, revision: str | None) -> None:
    """Refuse a schema of another MLflow version, before MLflow opens the file: it would migrate some without asking."""
    if revision is None:
        return
    quieten()
    from mlflow.store.db.utils import _get_latest_schema_revision

    head = _get_latest_schema_revision()
    if revision != head:
        raise UsageError(
            f"The tracking database {store.database} has the schema of another MLflow version "
            f"({revision}, not {head}): back it up and run `mlflow db upgrade {shlex.quote(store.uri)}`; "
            f"if the file is the newer one, upgrade MLflow; or {ELSEWHERE}."
        )


def reap(client: Any, experiment_id: str) -> None:
    """Mark runs as KILLED whose process on this machine is gone (SIGKILL, power loss) while they are still RUNNING."""
    import psutil

    here = socket.gethostname().replace("'", "")
    query = f"attributes.status = 'RUNNING' and tags.`specdec.host` = '{here}'"
    try:
        for run in client.search_runs([experiment_id], query):
            number, _, born = run.data.tags.get("specdec.process", "").partition(":")
            try:
                alive = abs(psutil.Process(int(number)).create_time() - float(born)) < 2
            except (psutil.NoSuchProcess, ValueError):
                alive = False
            if not alive:
                client.set_terminated(run.info.run_id, "KILLED")
                logger.info("Run %s of a process that is gone was still open: now KILLED.", run.info.run_id)
    except Exception as error:  # a fault here must not keep a run from starting
        reraise_interruption(error)
        logger.debug("Runs of dead processes could not be closed: %s", error)


def quieten() -> None:
    """Give MLflow short retries, no telemetry and few log lines; settings of the user's environment stay."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    import mlflow  # noqa: F401  # sets its own levels when first imported; ours come after

    for name, level in (
        ("alembic", logging.WARNING),
        ("mlflow", logging.WARNING),
        ("mlflow.store.db.utils", logging.CRITICAL),  # prints a traceback where we print a sentence
        ("urllib3.connectionpool", logging.ERROR),
    ):
        logging.getLogger(name).setLevel(level)


def reraise_interruption(error: BaseException | None) -> None:
    """Raise the signal that an error of MLflow wraps, if it wraps one: a signal can arrive inside MLflow."""
    while error is not None:
        if isinstance(error, (Interrupted, KeyboardInterrupt)):
            raise error
        error = error.__cause__ or error.__context__


def reason(error: BaseException) -> str:
    """Return the first line of an error's message, short, without a password and without its full stop."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return without_password(lines[0])[:300].rstrip(". ")
