"""What the tables of a study say: one function per study, the same for a finished run, a report and a notebook."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

import pandas as pd

from specdec.errors import UsageError

from .sections import Section

MODULES = {
    "ablation": "ablation_sections",
    "equal_budget": "budget_sections",
    "grid": "grid_sections",
    "phase_transition": "transition_sections",
    "topk": "topk_sections",
}


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
    read = import_module(f"specdec.analysis.{MODULES[study]}").findings
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
    name = described["study"]
    about = About(**{key: described[key] for key in About.__dataclass_fields__})
    tables = {path.stem: pd.read_parquet(path) for path in sorted(folder.glob("*.parquet"))}
    return findings(name, tables, about)
