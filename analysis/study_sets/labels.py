"""Names for studies of one kind, and the panels of figures that show them side by side."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from ..figures import style
from ..findings import FinishedStudy


@dataclass(frozen=True)
class Labelled:
    """A study with a name that tells it from the others beside it: its prompt set, and the model where these differ."""

    label: str
    study: FinishedStudy


def labelled(studies: Sequence[FinishedStudy]) -> list[Labelled]:
    """Return studies with their names; equal ones are numbered in the order of the studies."""
    titles = {study.about.title for study in studies}
    names = [
        study.about.prompts if len(titles) == 1 else f"{study.about.prompts}, {study.about.title}" for study in studies
    ]
    found = []
    for at, (name, study) in enumerate(zip(names, studies, strict=True)):
        number = names[: at + 1].count(name)
        found.append(Labelled(name if names.count(name) == 1 else f"{name} ({number})", study))
    return found


def settings(studies: Sequence[Labelled]) -> str:
    """Return the titles of the studies, each once, for figures."""
    return "; ".join(dict.fromkeys(each.study.about.title for each in studies))


def caveats(studies: Sequence[Labelled]) -> list[str]:
    """Return what limits the conclusions, for each study that has such a limit."""
    said = []
    for each in studies:
        said += [f"{each.label}: {text}" for text in each.study.about.caveats(each.study.tables["skipped"])]
    return said


def panels(title: str, caption: str, count: int, height: float) -> tuple[Figure, np.ndarray]:
    """Return a figure with `count` panels side by side, in lines of two, whose axes are equal; call it in the style.

    Args:
        height: inches of a line of panels.
    """
    columns = 1 if count == 1 else 2
    lines = -(-count // columns)
    figure, axes = style.new_panels(title, caption, 1.7 + height * lines, lines, columns, sharex=True, sharey=True)
    for each in axes.flat[count:]:
        each.set_axis_off()
    return figure, axes
