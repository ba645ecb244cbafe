"""Uploads the runs of folders to a store after they ran, from their journals. A second upload changes nothing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from specdec.errors import UsageError
from specdec.tracking.journal import JOURNAL, Journal
from specdec.tracking.mirror import WRITER, Mirror, mirrors
from specdec.tracking.store import alive, fault, locate, locked, opened, reap, reraise_interruption


@dataclass(frozen=True)
class Upload:
    """The outcome for one folder: `done` is `uploaded`, `complete` (nothing was missing) or `running` (left alone)."""

    folder: Path
    done: str
    store: str
    run_id: str = ""


def run_folders(folders: Sequence[Path]) -> list[Path]:
    """Return the run folders in and below some folders: those of sweeps stand before their cells.

    Raises:
        UsageError: a folder is not there, or has no run.
    """
    found: dict[Path, None] = {}
    for folder in folders:
        below = sorted(path.parent for path in folder.rglob(JOURNAL))
        if not below:
            raise UsageError(
                f"{folder} has no {JOURNAL}, so there is nothing to upload: name the output folder of a run, or of a "
                "sweep."
            )
        found |= dict.fromkeys(below)
    return list(found)


def logged_folders(above: Sequence[Path]) -> list[Path]:
    """Return the run folders below some folders, there or not, without the runs that were to be logged nowhere."""
    found = run_folders([folder for folder in above if any(folder.rglob(JOURNAL))])
    return [folder for folder in found if Journal(folder).header.get("store")]


def upload(
    folders: Sequence[Path], here: Path, uri: str | None = None, experiment: str | None = None
) -> Iterator[Upload]:
    """Complete each folder's run in its store, and yield what was done.

    Args:
        folders: run folders, as `run_folders` orders them.
        here: folder that a relative address is meant from.
        uri: address of the store; None for the one that each run was to be logged to.
        experiment: name of the experiment; None for the run's own.
    Raises:
        UsageError, EnvironmentFault: the store cannot be used, or does not answer.
    """
    from filelock import FileLock
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    reaped: set[tuple[str, str]] = set()
    for folder in folders:
        with FileLock(folder / ".tracking.lock", timeout=300):
            journal = Journal(folder)
            if not journal.entries:  # cut short in its first line
                continue
            store = locate(_address(journal, uri, folder), here)
            name = experiment or str(journal.header["experiment"])
            known = mirrors(folder).get(store.shown, {})
            finished = journal.status is not None or journal.discarded
            if finished and known.get("complete") and known.get("experiment") == name:
                yield Upload(folder, "complete", store.shown, known["run_id"])
                continue
            if not finished and alive(_process(journal), journal.touched()):
                yield Upload(folder, "running", store.shown)
                continue
            with locked(store):
                client, experiment_id = opened(store, name)
                if (store.uri, name) not in reaped:
                    reap(client, experiment_id)
                    reaped.add((store.uri, name))
            if not finished:  # its process was killed, and could not say so
                seen = int(journal.touched() * 1000)
                journal.append({"end": "KILLED"}, seen)
            mirror = Mirror(client, store, (name, experiment_id), journal)
            began = mirror.run_id
            try:
                mirror.catch_up()
                if began and not journal.discarded:
                    mirror.tag(WRITER, "synced")
            except (MlflowException, SQLAlchemyError, OSError) as error:
                reraise_interruption(error)
                raise fault(store, error) from None
        yield Upload(folder, "uploaded", store.shown, mirror.run_id)


def _process(journal: Journal) -> dict[str, str]:
    """Return the tags of the process that last wrote a run."""
    again = [entry["again"] for entry in journal.entries if "again" in entry]
    return dict(again[-1] if again else journal.header["tags"])


def _address(journal: Journal, uri: str | None, folder: Path) -> str | None:
    """Return the address to upload to. Journals keep no password, so one that had any must be given again."""
    if uri is not None:
        return uri
    own = str(journal.header["store"])
    if "://***@" in own:
        raise UsageError(
            f"{folder} was to be logged to {own}, and its password is not kept: give the address with --tracking-uri."
        )
    return own or None
