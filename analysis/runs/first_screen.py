"""Puts the verdict, the table over gamma, the account and the curve of a run before everything else that it says."""

from collections.abc import Sequence
from dataclasses import replace

from ..findings import Section

SHOWN = ("account", "curve_speedup")  # figures of the first screen, in order


def first_screen(sections: Sequence[Section]) -> list[Section]:
    """Return the sections of a run with the figures SHOWN moved behind the tables of the first section, the summary.

    A figure that no section has is left out; text and tables stay where they are.
    """
    figures = {name: figure for section in sections for name, figure in section.figures}
    first, *others = (
        replace(section, figures=tuple((name, figure) for name, figure in section.figures if name not in SHOWN))
        for section in sections
    )
    shown = tuple((name, figures[name]) for name in SHOWN if name in figures)
    return [replace(first, figures=(*first.figures, *shown)), *others]
