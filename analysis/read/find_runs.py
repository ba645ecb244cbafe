"""Finds the runs and studies that a user names by a folder, a sweep's folder, an MLflow run id or an experiment."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from specdec.errors import UsageError

from ..sections import FinishedStudy
from .mlflow_runs import RUN_ID, load_runs, open_run, study_ids
from .runs import COMMAND, Run, open_folder
from .studies import STUDY, finished_study, logged_study

# The table of a run that ended, the part-files of one that was killed, the texts of an imported file, and load points.
DECODED = ("rounds.parquet", "rounds", "generations.jsonl", "loads.parquet")


class Named(NamedTuple):
    """The runs and studies that some names stand for, in order, each once, and sentences about what was left out."""

    runs: list[Run]
    studies: list[FinishedStudy]
    notes: list[str]


def find_runs(names: Sequence[str], tracking_uri: str) -> Named:
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
    return Named(list(runs.values()), list(studies.values()), notes)


def _in_folder(folder: Path) -> Named:
    """Return the folder's own run, or the runs of all sweep cells below it, and the studies in or below it."""
    holding = sorted((path.parent for path in folder.rglob(STUDY)), key=_natural)
    studies = [finished_study(path) for path in holding]
    decoded = sorted({path.parent for kind in DECODED for path in folder.rglob(kind)} - {*holding}, key=_natural)
    if studies and not decoded:
        return Named([], studies, [])
    if (folder / "config.yaml").is_file():
        return Named([open_folder(folder)], studies, [])
    configured = {path.parent for path in folder.rglob("config.yaml") if ".hydra" not in path.parts} - {*holding}
    runs = [open_folder(path) for path in decoded if path in configured]
    if not runs:
        raise UsageError(f"There is no run with rounds in or below {folder}: `{COMMAND}` makes one.")
    unfinished = sum(run.status != "FINISHED" for run in runs)
    notes = [f"{unfinished} of {len(runs)} runs below {folder} did not finish."] if unfinished else []
    if silent := len(configured) - len(runs):
        notes.append(f"{silent} of {len(configured)} runs below {folder} left no round and are not shown.")
    return Named(runs, studies, notes)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return the sort key of a path that puts cell 10 after cell 9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in path.parts]


def _in_store(name: str, tracking_uri: str) -> Named:
    """Return the run or study of an id; else an experiment's studies and its finished main runs, oldest first."""
    studies = [logged_study(tracking_uri, run_id) for run_id in study_ids(tracking_uri, name)]
    if RUN_ID.fullmatch(name):
        return Named([] if studies else [open_run(tracking_uri, name)], studies, [])
    try:
        table = load_runs(tracking_uri, name)
    except UsageError:
        if studies:  # of an experiment without a main run
            return Named([], studies, [])
        raise
    finished = table[table["status"] == "FINISHED"]
    if finished.empty:
        raise UsageError(
            f"The experiment {name!r} has no finished run: `{COMMAND} tracking.experiment={name}` makes one."
        )
    left = len(table) - len(finished)
    note = f"{left} of {len(table)} runs of the experiment {name!r} did not finish and are not shown."
    runs = [open_run(tracking_uri, str(run_id)) for run_id in finished.index[::-1]]
    return Named(runs, studies, [note] if left else [])
