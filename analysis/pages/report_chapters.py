"""The chapters of a report: what is shown of runs and of imported results, in which order.

A section that a run cannot have becomes a sentence that says what is missing; the rest of the report stands.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from specdec.errors import UsageError

from ..acceptance.model_sections import model_sections
from ..account.account_sections import account_sections
from ..account.load_account import explain
from ..engines.recommendation import TITLE as TO_SERVE
from ..findings import run_sections
from ..findings.compare import LEADERBOARD, comparable, comparison_sections, groups_in_words, open_each
from ..findings.foreign_sections import foreign_findings, side_by_side
from ..findings.side_by_side import PEERS, TITLE, drafters_section, peers_section
from ..read.facts import LOAD
from ..read.load_points import read_folder
from ..read.runs import Run
from ..sections import Section
from .html import Chapter

logger = logging.getLogger(__name__)

OF_A_RUN: tuple[tuple[str, Callable[..., Section | list[Section]]], ...] = (
    ("Summary", run_sections.summary_section),
    (run_sections.NOTES, run_sections.figures_section),
    (TITLE, drafters_section),
    (PEERS, peers_section),
    (run_sections.STANDING, run_sections.standing_section),
    ("Curves over gamma", run_sections.curves_section),
    ("The gap, explained", account_sections),
    ("Tests and models", model_sections),
    ("Rounds: what is accepted, where the time goes", run_sections.lengths_section),
    (run_sections.TIMELINE, run_sections.timeline_section),
    ("By category", run_sections.category_section),
    ("As the papers define it", run_sections.papers_section),
    ("Cost of a call", run_sections.cost_section),
    ("Environment", run_sections.environment_section),
    ("How to reproduce", run_sections.reproduce_section),
    (TO_SERVE, lambda run: run_sections.run_recommendation(run).section()),
)
MANY = 6  # runs beyond which each shows its heading alone


def run_chapters(
    runs: Sequence[Run], notes: Sequence[str] = (), done: Callable[[], None] = lambda: None
) -> list[Chapter]:
    """Make one chapter per run, behind a comparison where there are several; behind them those of imported files, after
    a table of all, and of load tests. UsageError if a file and its baseline share no timed prompt. done: called after
    each run's.
    """
    kinds = [run.params.get("import.kind") for run in runs]
    own = [run for run, kind in zip(runs, kinds, strict=True) if kind is None]
    loads = [run for run, kind in zip(runs, kinds, strict=True) if kind == LOAD]
    imports = [run for run, kind in zip(runs, kinds, strict=True) if kind not in (None, LOAD)]
    chapters: list[Chapter] = []
    for run in own:
        sections: list[Section] = []
        for title, make in OF_A_RUN:
            peers = run.params.get("measurement.peers", "[]") != "[]"
            if (run.beside or make is not drafters_section) and (peers or make is not peers_section):
                sections += _guarded(title, partial(make, run))
        at = "" if run.primary_gamma is None else f", gamma {run.primary_gamma}"
        unfinished = "" if run.status == "FINISHED" else f" ({run.status.lower()})"
        shown = 0 if len(own) > MANY else 1 if len(own) > 1 else None
        arranged = (*run_sections.arranged(sections, run), *(_remarks(notes) if len(own) == 1 else []))
        chapters.append(Chapter(f"{run.title}{at} [{run.name}]{unfinished}", arranged, shown))
        done()
    if len(own) > 1:
        opened, left_out = open_each(own)
        groups = comparable(opened)
        made = [_guarded(LEADERBOARD, partial(comparison_sections, group, groups)) for group in groups]
        boards, behind = [board for board, *_ in made], [section for _, *others in made for section in others]
        together = [("", own)] if len(groups) < 2 else [(f": {group.heading}", group.runs) for group in groups]
        fastest = [
            replace(section, title=run_sections.FASTEST + name)
            for name, members in together
            if len(members) > 1
            for section in _guarded(run_sections.FASTEST, partial(run_sections.fastest_section, members))
        ]
        said = _remarks([*groups_in_words(groups), *left_out, *notes])
        comparison = [Chapter("Comparison", (*boards, *said, *fastest))]
        comparison += [Chapter("Behind the comparison", tuple(behind), shown=0)] if behind else []
        chapters = comparison + chapters
    data_sets = [foreign_findings(run) for run in imports]
    if len(data_sets) > 1:
        chapters.append(Chapter("Foreign results side by side", (side_by_side(data_sets),)))
    for one in data_sets:
        title = f"Foreign results: {one.facts.name} ({one.facts.kind}, gamma {one.facts.gamma})"
        chapters.append(Chapter(title, one.sections))
    for run in loads:
        title = f"Load tests: {run.name}" if len(loads) > 1 else "Load tests"
        chapters.append(Chapter(title, explain(read_folder(Path(run.source)))))
    return chapters


def _remarks(remarks: Sequence[str]) -> list[Section]:
    return [Section("About this report", ("\n".join(f"- {note}" for note in remarks),))] if remarks else []


def _guarded(title: str, make: Callable[[], Section | Sequence[Section]]) -> list[Section]:
    """Return the sections of `make`, or one that says what keeps it from making them."""
    try:
        made = make()
        return [made] if isinstance(made, Section) else list(made)
    except KeyError as error:
        why = f"The key {error.args[0]!r} is missing from an artifact, which another version wrote: run it again."
    except UsageError as error:
        why = str(error)
    except ValueError as error:
        why = f"{str(error)[:1].upper()}{str(error)[1:].rstrip('.')}."
    except (TypeError, AttributeError, IndexError, ArithmeticError) as error:
        # Values of another kind than runs write, somewhere in a file that was edited or damaged.
        logger.debug("The section %r cannot be made.", title, exc_info=True)
        why = f"A file of the run holds values that no run writes ({type(error).__name__}: {error})."
    return [Section(title, (f"Not available for this run. {why}",))]
