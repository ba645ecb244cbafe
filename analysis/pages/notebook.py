"""Shows sections in notebooks, and finds the runs that the overlay `notebooks` made."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from specdec.errors import UsageError

from ..account.shape_account import shape_section
from ..findings.compare import comparison_section, loops_in_words, refuted_in_words
from ..findings.run_sections import papers_section
from ..findings.sentences import loops_note
from ..read.find_runs import chosen_studies, latest_study, load_runs, open_run, open_runs
from ..read.runs import COMMAND, Run
from ..research.grounded_gain import committed_section, gain_section
from ..sections import Section
from ..studies.batching import committed_in_words, committed_study
from ..studies.serving import committed_sections
from .html import section_blocks

OVERLAY = "notebooks"
Sections = tuple[Section, ...]


def show(*sections: Section, heading: str = "") -> None:
    """Display sections in a notebook: title, sentences, tables, then figures."""
    from IPython.display import Markdown, display

    if heading:
        display(Markdown(f"## {heading}"))
    for section in sections:
        display(Markdown("\n\n".join(section_blocks(replace(section, figures=()), "###", ()))))
        for _, figure in section.figures:
            display(figure)


def overlay_runs(tracking_uri: str, experiment: str, overlay: str, each: str, or_others: bool = False) -> list[Run]:
    """Return the newest finished run of an overlay for each value of a parameter; where it was never run, with
    `or_others` those of all runs. UsageError if there is none.
    """
    table = load_runs(tracking_uri, experiment)
    finished = table["status"] == "FINISHED"
    of_overlay = finished & (table.get("params.experiment_name") == overlay)
    chosen = table[of_overlay if of_overlay.any() or not or_others else finished]
    if chosen.empty:
        raise UsageError(
            f"The experiment {experiment!r} has no finished run of the overlay {overlay}: "
            f"`python -m specdec.run +experiment={overlay}` makes them."
        )
    newest = chosen.drop_duplicates(f"params.{each}")
    return [open_run(tracking_uri, str(run_id)) for run_id in reversed(newest.index)]


def own_runs(tracking_uri: str, experiment: str, chosen: Sequence[str] = ()) -> list[Run]:
    """Return the runs of the ids or folders in `chosen`; without any those of the overlay `notebooks`, else the newest
    of every drafter, oldest first. UsageError for what is no run, and where none finished.
    """
    if chosen:
        return open_runs(tracking_uri, chosen)
    return overlay_runs(tracking_uri, experiment, OVERLAY, "drafter.name", or_others=True)


def own_run(tracking_uri: str, experiment: str, chosen: Sequence[str] = ()) -> Run:
    """Return the first run of `chosen`, ids or folders, or else the newest finished one. UsageError as `own_runs`."""
    if chosen:
        return open_runs(tracking_uri, chosen[:1])[0]
    table = load_runs(tracking_uri, experiment)
    finished = table[table["status"] == "FINISHED"]
    if finished.empty:
        raise UsageError(f"The experiment {experiment!r} has no finished run: `{COMMAND}` makes one.")
    return open_run(tracking_uri, str(finished.index[0]))


def study(tracking_uri: str, experiment: str, name: str, chosen: Sequence[str] = ()) -> Sections:
    """Return what a study found: the first of its name in `chosen`, run ids or folders, or else the newest finished one
    of the experiment; without one what a committed one found, if any, and what makes one.
    """
    try:
        own = [known for known in chosen_studies(tracking_uri, chosen) if known.kind == name]
        return (own[0].findings() if own else latest_study(tracking_uri, experiment, name)).sections
    except UsageError as error:
        return _stand_in(name, error)


def _stand_in(name: str, error: UsageError) -> Sections:
    """Return committed sections, the first of which says what makes one's own; without any, a section that says it."""
    said, first, others = [str(error)], Section(name), list[Section]()
    if name == "serving":
        first, *others = committed_sections()
    elif name == "batching":
        first, *others = committed_study().findings().sections
        said = [committed_in_words(), *said]
    elif name == "grounded_bars":
        first = committed_section()
    return (replace(first, text=(*first.text, *said)), *others)


def live(overlay: str, tracking_uri: str, experiment: str, chosen: Sequence[str] = ()) -> Sections:
    """Return what live runs of an overlay found (see `LIVE`): those of `chosen` that are no studies, or else the
    newest; without them what a committed one found, and what makes them.
    """
    each, sections_of = LIVE[overlay]
    try:
        runs = open_runs(tracking_uri, [name for name in chosen if not chosen_studies(tracking_uri, [name])])
        return sections_of(runs or overlay_runs(tracking_uri, experiment, overlay, each))
    except UsageError as error:
        return _stand_in(overlay, error)


def _heads(runs: Sequence[Run]) -> Sections:
    return (comparison_section(runs), *(replace(papers_section(run), title=run.title) for run in runs))


def _shapes(runs: Sequence[Run]) -> Sections:
    names = [run.params["structure.name"] for run in runs]
    section = shape_section(runs).ending(loops_in_words(runs, names))
    return (section.beginning(refuted_in_words(runs, names)),)


def _gain(runs: Sequence[Run]) -> Sections:
    return (gain_section(runs[-1]).ending(loops_note(runs[-1].metrics)).beginning(runs[-1].refuted),)


LIVE: dict[str, tuple[str, Callable[[Sequence[Run]], Sections]]] = {
    # overlay: the parameter that tells its runs apart, and sections of these
    "chain_rows_tree": ("structure.name", _shapes),
    "heads": ("drafter.name", _heads),
    "grounded_bars": ("drafter.name", _gain),
}


def answers(runs: Sequence[Run], sections: Sequence[Section], paragraphs: int = 1) -> str:
    """Return the first paragraphs of a section for each run, under its drafter's name, behind why its outputs are
    refuted if they are, and how many of them loop: Markdown.
    """
    return "\n".join(
        f"- **{run.params['drafter.name']}**: {f'**{run.refuted}** ' if run.refuted else ''}"
        f"{' '.join(section.ending(loops_note(run.metrics)).text[:paragraphs])}"
        for run, section in zip(runs, sections, strict=True)
    )


def firsts(*sections: Section) -> str:
    """Return the first sentence of each section, under its title: Markdown."""
    return "\n".join(f"- **{section.title}**: {section.text[0]}" for section in sections)
