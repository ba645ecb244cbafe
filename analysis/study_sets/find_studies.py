"""Finds the studies that a user names as runs are named: by an output folder, a folder of several, an MLflow run id or
an experiment.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from ..findings import FinishedStudy, described_study, finished_study
from ..read.find_runs import studies_below
from ..read.mlflow_runs import files_of_study, study_ids


def find_studies(names: Sequence[str], tracking_uri: str) -> list[FinishedStudy]:
    """Return the finished studies of all names in order, each once; names of runs alone add none.

    UsageError for a store that does not answer.
    """
    found: dict[str, FinishedStudy] = {}
    for name in names:
        folder = Path(name)
        if folder.is_dir():
            for below in studies_below(folder):
                found.setdefault(str(below.resolve()), finished_study(below))
        elif not folder.exists() and "/" not in name and "\\" not in name:
            for run_id in study_ids(tracking_uri, name):
                if run_id not in found:
                    files = files_of_study(tracking_uri, run_id)
                    described = json.loads(files.pop("study.json").read_text(encoding="utf-8"))
                    found[run_id] = described_study(described, files.values(), f"run {run_id}")
    return list(found.values())
