"""What the tables of a study say: one function per study, the same for a finished run, a report and a notebook."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from specdec.errors import UsageError

from .read.mlflow_runs import study_files
from .sections import Section

MODULES = {
    "ablation": "ablation_sections",
    "equal_budget": "budget_sections",
    "grid": "grid_sections",
    "phase_transition": "transition_sections",
    "topk": "topk_sections",
    "tree_search": "tree_search_sections",
    "typical_acceptance": "typical_sections",
}
OVERLAYS = {
    "ablation": "ngrammys_ablation",
    "equal_budget": "equal_budget",
    "grid": "ngrammys_grid",
    "phase_transition": "phase_transition",
    "topk": "ngrammys_topk",
    "tree_search": "tree_search",
    "typical_acceptance": "typical_acceptance",
}
"""Of conf/experiment, one that makes each study."""


@dataclass(frozen=True)
class About:
    """What a study's tables do not say themselves.

    Attributes:
        title: drafter, model, hardware: for figures.
        prompts: name of the prompt set.
        simulated: times come from a cost model.
        replicates, seed: of the prompt bootstrap.
    """

    title: str
    prompts: str
    simulated: bool
    replicates: int
    seed: int


@dataclass(frozen=True)
class Findings:
    """What a study found.

    Attributes:
        sections: for people; each begins with its answer.
        metrics: for MLflow, flat names.
        curves: for MLflow, name -> step -> value.
    """

    sections: tuple[Section, ...]
    metrics: dict[str, float] = field(default_factory=dict)
    curves: dict[str, dict[int, float]] = field(default_factory=dict)


def findings(study: str, tables: Mapping[str, pd.DataFrame], about: About) -> Findings:
    """What `tables`, by name, of a study say."""
    read: Callable[[Mapping[str, pd.DataFrame], About], Findings]
    read = import_module(f"specdec.analysis.studies.{MODULES[study]}").findings
    return read(tables, about)


def open_study(folder: Path | str) -> Findings:
    """The findings of a finished study, from its output folder alone.

    Raises:
        UsageError: no study's folder.
    """
    folder = Path(folder)
    try:
        described = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise UsageError(
            f"{folder} holds no study (study.json): `python -m specdec.run +experiment=ngrammys_grid` makes one."
        ) from None
    tables = {path.stem: pd.read_parquet(path) for path in sorted(folder.glob("*.parquet"))}
    return _described(described, tables)


def latest_study(tracking_uri: str, experiment: str, study: str) -> Findings:
    """The findings of the newest finished run of a study that MLflow has.

    Raises:
        UsageError: no such store, or no such run in it.
    """
    files = study_files(tracking_uri, experiment, study, OVERLAYS[study])
    described = json.loads(files.pop("study.json").read_text(encoding="utf-8"))
    return _described(described, {Path(name).stem: pd.read_parquet(path) for name, path in files.items()})


def _described(described: Mapping[str, Any], tables: Mapping[str, pd.DataFrame]) -> Findings:
    about = About(**{key: described[key] for key in About.__dataclass_fields__})
    return findings(described["study"], tables, about)
