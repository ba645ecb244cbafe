"""Reads finished studies: from an output folder, a folder of several, an MLflow run id or an experiment."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

import pandas as pd
from pydantic import TypeAdapter

from specdec.errors import UsageError

from ..sections import About, Findings, FinishedStudy, overlay_of
from .find_runs import STUDY, studies_below
from .mlflow_runs import RUN_ID, files_of_study, study_ids


def read_study(files: Mapping[str, Path], source: str) -> FinishedStudy:
    """Return a study from the paths of its `study.json` and of its tables, by file name.

    Raises:
        UsageError: the files hold something else.
    """
    try:
        described = json.loads(files[STUDY].read_text(encoding="utf-8"))
        about = TypeAdapter(About).validate_python({field.name: described[field.name] for field in fields(About)})
        tables = {path.stem: pd.read_parquet(path) for path in files.values() if path.suffix == ".parquet"}
        return FinishedStudy(str(described["study"]), tables, about, source)
    except (ValueError, TypeError, KeyError, AttributeError, OSError, RecursionError) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UsageError(
            f"{source} does not hold what a study writes ({what}): copy its files again, or run it again."
        ) from None


def finished_study(folder: Path | str) -> FinishedStudy:
    """Read a finished study from its output folder.

    Raises:
        UsageError: the folder holds no study.
    """
    folder = Path(folder)
    if not (folder / STUDY).is_file():
        raise UsageError(
            f"{folder} holds no study (study.json): `python -m specdec.run +experiment=ngrammys_grid` makes one."
        )
    return read_study({path.name: path for path in (folder / STUDY, *folder.glob("*.parquet"))}, str(folder))


def open_study(folder: Path | str) -> Findings:
    """Return the findings of a finished study, from its output folder alone.

    Raises:
        UsageError: the folder holds no study.
    """
    return finished_study(folder).findings()


def latest_study(tracking_uri: str, experiment: str, kind: str) -> Findings:
    """Return the findings of the newest finished study of a kind that MLflow has.

    Raises:
        UsageError: there is no such store, or no such run in it.
    """
    overlay = overlay_of(kind)
    ids = study_ids(tracking_uri, experiment, kind)
    if not ids:
        raise UsageError(
            f"The experiment {experiment!r} has no finished study {kind!r}: "
            f"`python -m specdec.run +experiment={overlay}` makes one."
        )
    return read_study(files_of_study(tracking_uri, ids[-1]), f"{kind} in {tracking_uri}").findings()


def find_studies(names: Sequence[str], tracking_uri: str) -> list[FinishedStudy]:
    """Return the finished studies of all names in order, each once; names of runs alone add none.

    UsageError for a store that does not answer.
    """
    studies: dict[str, FinishedStudy] = {}
    for name in names:
        folder = Path(name)
        if folder.is_dir():
            for below in studies_below(folder):
                studies.setdefault(str(below.resolve()), finished_study(below))
        elif not folder.exists() and "/" not in name and "\\" not in name:
            for run_id in study_ids(tracking_uri, name):
                if run_id not in studies:
                    studies[run_id] = read_study(files_of_study(tracking_uri, run_id), f"run {run_id}")
    return list(studies.values())


def chosen_studies(tracking_uri: str, chosen: Sequence[str]) -> list[FinishedStudy]:
    """Return the studies among what a person chose: run ids of the store, or folders."""
    named = [name for name in chosen if (Path(name) / STUDY).is_file() or RUN_ID.fullmatch(name)]
    return find_studies(named, tracking_uri)
