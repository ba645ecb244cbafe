"""Finds the MLflow store and makes it ready: file, schema, experiment. Every fault is a UsageError with its remedy,
because all of this happens before any decoding. MLflow is imported inside functions: that takes over a second.
"""

import calendar
import hashlib
import logging
import os
import re
import shlex
import socket
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

from specdec.errors import EnvironmentFault, Interrupted, SpecdecError, UsageError

logger = logging.getLogger(__name__)

SQLITE = "sqlite:///"
HEARTBEAT = "%Y-%m-%dT%H:%M:%SZ"
ELSEWHERE = "name another store with tracking.uri=sqlite:///FILE"
SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # MLflow's own values (7 retries, 120 s each) block for minutes when a server goes away.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_ARTIFACT_UPLOAD_DOWNLOAD_TIMEOUT": "30",
}
# The tag by which MLflow opens an experiment as one of models, with its chart view, and not as one of prompts.
TRAINING_VIEW = {"mlflow.experimentKind": "custom_model_development"}
DRIVER = ("sqlalchemy", "alembic")  # packages that MLflow opens databases with
CONNECT_SECONDS = 5  # to a database server
ASK_AGAIN_SECONDS = 60.0  # a store that was down is not asked again for so long: every question costs seconds
ELSEWHERE_SILENT_HOURS = 6.0  # without a heartbeat, until a run of another machine counts as dead
# Databases say by words only if nobody answers or if somebody said no.
_REFUSED = re.compile(r"authentication|password|does not exist|permission|unknown database|access denied", re.I)
_silent: dict[str, tuple[float, str]] = {}  # by address: when a store did not answer, and what is said of it


class Unreachable(EnvironmentFault):
    """A store that may be right and does not answer: a run can go on without it, and be uploaded later."""


@dataclass(frozen=True)
class Store:
    """The absolute address of a store; `database` and `artifacts` are None where a server decides."""

    uri: str
    database: Path | None
    artifacts: Path | None

    @property
    def shown(self) -> str:  # without a password
        return without_password(self.uri)

    @property
    def is_server(self) -> bool:
        return self.uri.startswith(("http://", "https://"))

    @property
    def is_database_server(self) -> bool:
        """True for PostgreSQL and its like: neither a file nor a tracking server."""
        return self.database is None and not self.is_server


def without_password(text: str) -> str:
    """Replace user and password in an address by stars; a database's user without a password stays."""
    return re.sub(r"(https?://|://(?=[^/@\s:]*:))[^/@\s]+@", r"\1***@", text)


def locate(uri: str | None, folder: Path) -> Store:
    """Return the store that `tracking.uri` means for a command that runs in `folder`: without one `mlflow.db` there.
    UsageError for an address that is neither a database nor a server.
    """
    folder = folder.resolve()
    if not uri:  # also an environment variable that is set to nothing
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
    # psycopg 3, the driver of the extra `postgres`: SQLAlchemy's versions differ in what a bare address means.
    uri = re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", uri)
    return Store(uri, None, folder / "mlartifacts")


@contextmanager
def locked(store: Store) -> Iterator[None]:
    """Let one process at a time use a database: where two create the schema at once, MLflow fails in all but one.
    UsageError if the database's folder cannot be written.
    """
    if store.is_server:
        yield
        return
    from filelock import FileLock, Timeout

    quieten()  # imports MLflow before the lock is held
    if store.database is None:  # machines agree in another way: a sweep opens the store before its cells start
        name = hashlib.sha256(store.uri.encode()).hexdigest()[:16]
        path = Path(tempfile.gettempdir()) / f"specdec-{os.getuid() if hasattr(os, 'getuid') else 0}-{name}.lock"
    else:
        path = store.database.parent / f".{store.database.name}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        held = FileLock(path, timeout=300).acquire()
    except Timeout:
        raise UsageError(f"Another process has held {path} for five minutes: end it and try again.") from None
    except OSError as error:
        raise UsageError(
            f"The tracking database {store.database or store.shown} cannot be written ({error.strerror}): "
            f"run specdec where you may write, or {ELSEWHERE}."
        ) from None
    with held:
        yield


def opened(store: Store, experiment: str) -> tuple[Any, str]:
    """Open the store and return its client and the experiment's id; make schema and experiment if there are none.
    Raises UsageError: the store or the experiment cannot be used; Unreachable: the server does not answer, or did not
    less than a minute ago.
    """
    silent = _silent.get(store.uri)
    if silent is not None and time.monotonic() - silent[0] < ASK_AGAIN_SECONDS:
        raise Unreachable(silent[1])
    try:
        check_driver(store)
        check_file(store)
        quieten()
        if store.is_database_server:
            # Once, with a short limit: MLflow's own ten attempts take a minute and a half.
            from sqlalchemy import create_engine

            engine = create_engine(store.uri, connect_args={"connect_timeout": CONNECT_SECONDS})
            try:
                engine.connect().close()
            finally:
                engine.dispose()
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=store.uri)
        known = client.get_experiment_by_name(experiment)
        if known is None:
            artifacts = store.artifacts.as_uri() if store.artifacts else None
            try:
                return client, client.create_experiment(experiment, artifacts, TRAINING_VIEW)
            except MlflowException:
                known = client.get_experiment_by_name(experiment)  # another process was faster
                if known is None:
                    raise
    except SpecdecError:
        raise
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "psycopg":
            raise UsageError(
                'tracking.uri=postgresql://... needs the driver psycopg: pip install "specdec-workbench[postgres]".'
            ) from None
        raise UsageError(
            f"The tracking store {store.shown} needs the Python package {error.name!r}, which is not installed: "
            "install what requirements-headless.txt lists, or the whole of mlflow."
        ) from None
    except Exception as error:  # MLflow's, SQLAlchemy's, a missing driver's, the network's
        reraise_interruption(error)
        raise fault(store, error) from None
    if known.lifecycle_stage == "deleted":
        raise UsageError(
            f"The experiment {experiment!r} was deleted in {store.shown}: restore it with "
            f"`MLFLOW_TRACKING_URI={shlex.quote(store.shown)} mlflow experiments restore --experiment-id "
            f"{known.experiment_id}`, or choose another with tracking.experiment=NAME."
        )
    return client, known.experiment_id


def check_driver(store: Store) -> None:
    """Refuse a database where MLflow cannot open one: `mlflow-skinny` alone says that it knows no such address."""
    lacking = [] if store.is_server else [name for name in DRIVER if find_spec(name) is None]
    if lacking:
        raise UsageError(
            f"The tracking database {store.shown} needs {' and '.join(lacking)}, which mlflow-skinny comes without: "
            f"pip install {' '.join(lacking)}, or name a server with tracking.uri=http://HOST:PORT."
        )


def serving(store: Store) -> str:
    """Return the command that shows a database in a browser; with `mlflow-skinny` it installs the pages first."""
    command = f"mlflow ui --backend-store-uri {shlex.quote(store.shown)}"
    if find_spec("flask") is not None:
        return command
    return f"pip install mlflow=={version('mlflow-skinny')} && {command}"


def fault(store: Store, error: Exception) -> SpecdecError:
    """Return the sentence on a store that failed: Unreachable if nobody answered, else a UsageError."""
    kind = "server" if store.is_server else "database" if store.is_database_server else "store"
    if unanswered(store, error):
        sentence = (
            f"The tracking {kind} {store.shown} does not answer ({reason(error)}): start it, correct tracking.uri, "
            "or leave it out to log into ./mlflow.db."
        )
        _silent[store.uri] = time.monotonic(), sentence
        return Unreachable(sentence)
    remedy = ": correct tracking.uri, or leave it out to log into ./mlflow.db" if kind != "store" else ""
    return UsageError(f"The tracking {kind} {store.shown} cannot be used ({reason(error)}){remedy}.")


def unanswered(store: Store, error: Exception) -> bool:
    """Return True if an error says that nobody answers, or a server is broken; False for a refusal."""
    if store.is_server:
        from mlflow.exceptions import InvalidUrlException, MlflowException

        broken = isinstance(error, MlflowException) and error.get_http_status_code() >= 500
        return broken and not isinstance(error, InvalidUrlException)
    from sqlalchemy.exc import OperationalError

    return store.is_database_server and isinstance(error, OperationalError) and not _REFUSED.search(str(error))


def check_file(store: Store) -> bool:
    """Return False where the store is a file that is new or empty. Refuse one that MLflow did not make, that cannot be
    written, or that has the schema of another MLflow version, before MLflow opens it: it would migrate some without
    asking. The file stays as it is.
    """
    database, remedy = store.database, f"move it away, or {ELSEWHERE}"
    if database is None:
        return True
    if not database.exists():
        return False
    said = f"The tracking database {database}"
    if not database.is_file():
        raise UsageError(f"{said} is not a file: {remedy}.")
    if not os.access(database, os.R_OK | os.W_OK):
        raise UsageError(f"{said} cannot be read and written: {remedy}.")
    if not os.access(database.parent, os.W_OK | os.X_OK):  # SQLite keeps its journal beside the file
        where = f"run specdec where you may write, or {ELSEWHERE}"
        raise UsageError(f"{said} cannot be written, because its folder cannot: {where}.")
    with database.open("rb") as file:
        if file.read(16) not in (b"", b"SQLite format 3\0"):
            raise UsageError(f"{said} is not an MLflow database: {remedy}.")
    # mode=rw, not ro: after a kill SQLite must roll the journal back before it can read.
    connection = sqlite3.connect(f"file:{quote(str(database))}?mode=rw", uri=True, timeout=20)
    try:
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not tables:
            return False
        if not {"alembic_version", "experiments", "runs"} <= tables:
            raise UsageError(f"{said} is not an MLflow database: {remedy}.")
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.DatabaseError as error:
        raise UsageError(f"{said} cannot be used ({error}): {remedy}.") from None
    finally:
        connection.close()
    quieten()
    from mlflow.store.db.utils import _get_latest_schema_revision

    revision, head = str(row[0]) if row else "unknown", _get_latest_schema_revision()
    if revision != head:
        raise UsageError(
            f"{said} has the schema of another MLflow version ({revision}, not {head}): back it up and run "
            f"`mlflow db upgrade {shlex.quote(store.uri)}`; if the file is the newer one, upgrade MLflow; "
            f"or {ELSEWHERE}."
        )
    return True


def reap(client: Any, experiment_id: str) -> None:
    """Mark runs as KILLED whose process is gone (SIGKILL, power loss) while they are still RUNNING: on this machine by
    the process, on others by the age of the last heartbeat.
    """
    try:
        for run in client.search_runs([experiment_id], "attributes.status = 'RUNNING'"):
            if "specdec.process" in run.data.tags and not alive(run.data.tags):
                client.set_terminated(run.info.run_id, "KILLED")
                logger.info("Run %s of a process that is gone was still open: now KILLED.", run.info.run_id)
    except Exception as error:  # a fault here must not keep a run from starting
        reraise_interruption(error)
        logger.debug("Runs of dead processes could not be closed: %s", error)


def alive(tags: Mapping[str, str], seen: float | None = None) -> bool:
    """Return False if the process that a run's tags name is gone, or presumed to be: on another machine by when the run
    was last `seen`, in seconds since 1970, or by the tag of its heartbeat.
    """
    if tags.get("specdec.host") == socket.gethostname():
        return process_runs(tags.get("specdec.process", ""))
    if seen is None:
        try:
            seen = float(calendar.timegm(time.strptime(tags.get("specdec.heartbeat", ""), HEARTBEAT)))
        except ValueError:
            return True
    return time.time() - seen < ELSEWHERE_SILENT_HOURS * 3600


def this_process() -> str:
    """Return number and birth of this process, as `process_runs` reads them: numbers alone are used again."""
    import psutil

    process = psutil.Process()
    return f"{process.pid}:{process.create_time():.0f}"


def process_runs(process: str) -> bool:
    """Return True if a process of this machine, as `this_process` wrote it, still runs."""
    import psutil

    number, _, born = process.partition(":")
    try:
        return abs(psutil.Process(int(number)).create_time() - float(born)) < 2
    except (psutil.NoSuchProcess, ValueError):
        return False


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
