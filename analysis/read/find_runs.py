"""Finds the runs that a user names by an output folder, a sweep's folder, an MLflow run id or an experiment."""

from collections.abc import Sequence
from pathlib import Path

from specdec.errors import UsageError

from .facts import STATUS_FILE, RunStatus
from .mlflow_runs import RUN_ID, has_main_run, load_runs, open_run, study_ids
from .runs import COMMAND, Run, open_folder

ROUNDS = ("rounds.parquet", "rounds")  # the table of a run that ended; the part-files of one that was killed


def find_runs(names: Sequence[str], tracking_uri: str) -> tuple[list[Run], list[str]]:
    """Return the runs of all names in order, each once, and sentences about what was left out.

    A folder is taken before a run id, a run id before an experiment's name. UsageError, naming it, for a name that is
    none of these, or that has no run.
    """
    runs: dict[str, Run] = {}
    notes: list[str] = []
    for name in names:
        try:
            if holds_studies_alone(name, tracking_uri):
                continue  # `studies.find_studies` reads them
            if Path(name).is_dir():
                named, remarks = _in_folder(Path(name))
            elif Path(name).exists():
                raise UsageError(
                    f"{name} is a file: name a run's output folder, or import foreign results with --import."
                )
            elif RUN_ID.fullmatch(name):
                named, remarks = [open_run(tracking_uri, name)], []
            elif "/" in name or "\\" in name:
                raise UsageError(f"There is no folder {name}: name a run's output folder, a run id or an experiment.")
            else:
                named, remarks = _in_experiment(name, tracking_uri)
        except UsageError as error:
            if name in str(error):
                raise
            # The error may not name what was looked up, as where there is no store to look it up in.
            raise UsageError(
                f"There is no folder {name}, and it cannot be looked up as a run or an experiment. {error}"
            ) from None
        runs |= {run.source: run for run in named if run.source not in runs}
        notes += remarks
    return list(runs.values()), notes


def unsettled_below(names: Sequence[str]) -> list[Path]:
    """Return the folders of such runs (`unsettled`) in and below the folders among some names."""
    folders = [path.parent for name in names if Path(name).is_dir() for path in Path(name).rglob(STATUS_FILE)]
    return [folder for folder in folders if unsettled(folder)]


def unsettled(folder: Path) -> bool:
    """Return True if the run of a folder decoded prompts and ended, or was killed, before it was analysed."""
    status = RunStatus.read(folder)
    if status is None or not status.prompts or status.status not in ("running", "killed"):
        return False
    return status.status == "running" or not (folder / "summary.json").is_file()


STUDY = "study.json"  # the file by which a study's folder is known


def studies_below(folder: Path) -> list[Path]:
    """Return the folders of finished studies in or below a folder, in natural order."""
    return sorted((path.parent for path in folder.rglob(STUDY)), key=_natural)


def holds_studies_alone(name: str, tracking_uri: str) -> bool:
    """Return True if a name is a folder with finished studies and without runs, a study's run id, or an experiment with
    finished studies and without a main run.
    """
    folder = Path(name)
    if folder.is_dir():
        studies = set(studies_below(folder))
        decoded = {path.parent for kind in ROUNDS for path in folder.rglob(kind)} - studies
        return bool(studies) and not decoded
    if folder.exists() or "/" in name or "\\" in name:
        return False
    return bool(study_ids(tracking_uri, name)) and not has_main_run(tracking_uri, name)


def _in_folder(folder: Path) -> tuple[list[Run], list[str]]:
    """Return the folder's own run, or the runs of all sweep cells below it, and sentences about those left out."""
    own = folder / "config.yaml"
    if own.is_file():
        return [open_folder(folder)], []
    studies = set(studies_below(folder))
    configured = {path.parent for path in folder.rglob("config.yaml") if ".hydra" not in path.parts}
    below = sorted(configured - studies, key=_natural)
    decoded = [path for path in below if any((path / name).exists() for name in ROUNDS)]
    if not decoded:
        raise UsageError(f"There is no run with rounds in or below {folder}: `{COMMAND}` makes one.")
    runs = [open_folder(path) for path in decoded]
    unfinished = sum(run.status != "FINISHED" for run in runs)
    notes = [f"{unfinished} of {len(runs)} runs below {folder} did not finish."] if unfinished else []
    if len(decoded) < len(below):
        notes.append(
            f"{len(below) - len(decoded)} of {len(below)} runs below {folder} left no round and are not shown."
        )
    return runs, notes


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort key of a path that puts cell 10 after cell 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in path.parts]


def _in_experiment(name: str, tracking_uri: str) -> tuple[list[Run], list[str]]:
    """Return the finished main runs of an experiment, oldest first, and a sentence about the others."""
    table = load_runs(tracking_uri, name)
    finished = table[table["status"] == "FINISHED"]
    if finished.empty:
        raise UsageError(
            f"The experiment {name!r} has no finished run: `{COMMAND} tracking.experiment={name}` makes one."
        )
    left = len(table) - len(finished)
    notes = (
        [f"{left} of {len(table)} runs of the experiment {name!r} did not finish and are not shown."] if left else []
    )
    return [open_run(tracking_uri, str(run_id)) for run_id in finished.index[::-1]], notes
