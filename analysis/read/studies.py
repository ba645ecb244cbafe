"""Reads finished studies: from an output folder, an MLflow run id or an experiment."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
from pydantic import TypeAdapter

from specdec.errors import UsageError

from ..sections import About, Findings, FinishedStudy, registered
from .mlflow_runs import RUN_ID, files_of_study, study_ids

STUDY = "study.json"  # the file by which a study's folder is known


def read_study(files: Mapping[str, Path], source: str) -> FinishedStudy:
    """Return a study from the paths of its files by name. UsageError for other content."""
    try:
        described = json.loads(files[STUDY].read_text(encoding="utf-8"))
        about = TypeAdapter(About).validate_python(described)
        tables = {path.stem: pd.read_parquet(path) for path in files.values() if path.suffix == ".parquet"}
        return FinishedStudy(str(described["study"]), tables, about, source)
    except (ValueError, TypeError, KeyError, AttributeError, OSError, RecursionError) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UsageError(
            f"{source} does not hold what a study writes ({what}): copy its files again, or run it again."
        ) from None


def finished_study(folder: Path | str) -> FinishedStudy:
    """Read a finished study from its output folder. UsageError if the folder holds no study."""
    folder = Path(folder)
    if not (folder / STUDY).is_file():
        raise UsageError(
            f"{folder} holds no study (study.json): `python -m specdec.run +experiment=ngrammys_grid` makes one."
        )
    return read_study({path.name: path for path in (folder / STUDY, *folder.glob("*.parquet"))}, str(folder))


def logged_study(tracking_uri: str, run_id: str) -> FinishedStudy:
    """Read a finished study that MLflow has. UsageError for files that hold something else."""
    return read_study(files_of_study(tracking_uri, run_id), f"run {run_id}")


def latest_study(tracking_uri: str, experiment: str, kind: str) -> Findings:
    """Return the findings of the newest finished study of a kind that MLflow has. UsageError if there is none."""
    _, overlay = registered(kind)
    ids = study_ids(tracking_uri, experiment, kind)
    if not ids:
        raise UsageError(
            f"The experiment {experiment!r} has no finished study {kind!r}: "
            f"`python -m specdec.run +experiment={overlay}` makes one."
        )
    return logged_study(tracking_uri, ids[-1]).findings()


def chosen_studies(tracking_uri: str, chosen: Sequence[str]) -> list[FinishedStudy]:
    """Return the studies among what a person chose: run ids of the store, or folders."""
    studies = []
    for name in chosen:
        if (Path(name) / STUDY).is_file():
            studies.append(finished_study(name))
        elif RUN_ID.fullmatch(name) and study_ids(tracking_uri, name):
            studies.append(logged_study(tracking_uri, name))
    return studies
