"""A piece of a report: a heading, sentences, tables and figures, made by one analysis and written by any renderer."""

from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure


@dataclass(frozen=True)
class Section:
    """What one analysis has to say.

    Attributes:
        text: paragraphs in Markdown, the answer first.
        tables: (caption, table); the index is not shown.
        figures: (name for files, figure in the project's style).
    """

    title: str
    text: tuple[str, ...] = ()
    tables: tuple[tuple[str, pd.DataFrame], ...] = ()
    figures: tuple[tuple[str, Figure], ...] = ()
