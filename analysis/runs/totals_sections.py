"""Sections about imported data sets that have sums of tokens and rounds only: tokens per round, and speed where times
exist. Nothing is said of single lengths, which the source does not have.
"""

from math import nan

import numpy as np
import pandas as pd

from specdec.theory.capped_geometric import tokens_per_round

from ..findings import Section, counted
from ..intervals import Columns, Interval, bootstrap
from ..read.foreign.imported import Imported
from .foreign_sections import ForeignFindings, speed_section

STEPS = 60  # of bisection, beyond the precision of a number


def totals_findings(
    source: Imported, baseline: pd.DataFrame | None = None, replicates: int = 2000, seed: int = 0
) -> ForeignFindings:
    """Return what a data set of sums says; `baseline` (prompt, repeat, tokens, seconds) adds the speedup.

    Raises:
        UsageError: it and the baseline share no timed prompt.
    """
    texts = source.texts
    sums = texts.groupby("prompt")[["tokens", "rounds"]].sum()
    measured = bootstrap(sums, _ratio, replicates, seed)["tokens_per_round"]
    sections = [_origin(source), _rounds(source, measured)]
    if texts["category"].nunique() > 1:
        sections.append(_categories(texts, replicates, seed))
    if baseline is not None:
        sections.append(speed_section(source, baseline, replicates, seed))
    row = {
        "data set": source.name,
        "texts": f"{len(texts):,}",
        "tokens": f"{texts['tokens'].sum():,.0f}",
        "gamma": str(source.gamma),
        "tokens per round": f"{measured:.3f}",
        "mean over requests": f"{_of_requests(texts):.3f}",
    }
    return ForeignFindings(source.name, source.kind, source.gamma, tuple(sections), row)


def implied_alpha(tokens: float, gamma: int) -> float:
    """Return the alpha at which the textbook formula gives these tokens per round; NaN beyond 1 to gamma + 1."""
    if not 1.0 <= tokens <= gamma + 1:
        return nan
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if float(tokens_per_round(middle, gamma)) < tokens else (low, middle)
    return (low + high) / 2


def _ratio(sums: Columns) -> dict[str, np.ndarray]:
    return {"tokens_per_round": sums["tokens"] / sums["rounds"]}


def _of_requests(texts: pd.DataFrame) -> float:
    """Return the mean of the texts' own tokens per round."""
    drafted = texts[texts["rounds"] > 0]
    return float((drafted["tokens"] / drafted["rounds"]).mean())


def _origin(source: Imported) -> Section:
    size = (
        f"Foreign results, imported from `{source.source}` as {source.kind}: sums of "
        f"{counted(len(source.texts), 'text')} and {counted(source.texts['prompt'].nunique(), 'prompt')} at gamma "
        f"{source.gamma}. Model, hardware and settings are those of whoever made the file; nothing here compares with "
        "runs of our own."
    )
    notes = "\n".join(f"- {note}" for note in source.notes)
    return Section("What the file holds, and what it does not", (size, notes))


def _rounds(source: Imported, measured: Interval) -> Section:
    alpha = implied_alpha(measured.estimate, source.gamma)
    words = f"**{measured:.3f} tokens per round**, {_of_requests(source.texts):.3f} in the mean over texts."
    if np.isfinite(alpha):
        implied = (
            f"The textbook formula gives this at alpha {alpha:.3f}, an alpha that was solved from the figure itself: "
            "that the formula agrees is its construction, neither a prediction nor a test."
        )
    else:
        implied = (
            f"No alpha gives this at gamma {source.gamma}: a round has 1 to {source.gamma + 1} tokens. Give the depth "
            "of the source's drafts with --gamma."
        )
    return Section("Tokens per round", (words, implied))


def _categories(texts: pd.DataFrame, replicates: int, seed: int) -> Section:
    rows = []
    for name, part in texts.groupby("category"):
        values = bootstrap(part.groupby("prompt")[["tokens", "rounds"]].sum(), _ratio, replicates, seed)
        figure = f"{values['tokens_per_round']:.3f}"
        rows.append({"category": name or "none", "texts": f"{len(part):,}", "tokens per round": figure})
    return Section("By category", (), (("With 95% prompt-bootstrap intervals", pd.DataFrame(rows)),))
