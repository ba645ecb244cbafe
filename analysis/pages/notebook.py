"""Shows sections in notebooks, and finds the runs that the overlay `notebooks` made."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from specdec.errors import UsageError

from ..account.shape_account import shape_section
from ..findings.compare import comparison_section, loops_in_words, refuted_in_words
from ..findings.run_sections import papers_section
from ..findings.sentences import loops_note
from ..read.mlflow_runs import latest_run, load_runs, open_run, open_runs
from ..read.runs import Run
from ..read.studies import chosen_studies, latest_study
from ..research.grounded_gain import committed_section, gain_section
from ..sections import Section
from ..studies.batching import committed_in_words, committed_study
from ..studies.serving import committed_sections
from .html import markdown_table

OVERLAY = "notebooks"


def show(*sections: Section, heading: str = "") -> None:
    """Display sections in a notebook: title, sentences, tables, figures, in the order of a report."""
    from IPython.display import Markdown, display

    if heading:
        display(Markdown(f"## {heading}"))
    for section in sections:
        display(Markdown("\n\n".join((f"### {section.title}", *section.text))))
        for caption, table in section.tables:
            display(Markdown(f"{caption}\n\n{markdown_table(table)}"))
        for _, figure in section.figures:
            display(figure)


def overlay_runs(tracking_uri: str, experiment: str, overlay: str = OVERLAY, each: str = "drafter.name") -> list[Run]:
    """Return the newest finished run of an overlay for each drafter, or for each value of another parameter, oldest
    first. UsageError if there is none.
    """
    table = load_runs(tracking_uri, experiment)
    named = table["params.experiment_name"] == overlay if "params.experiment_name" in table else table["status"] == ""
    chosen = table[named & (table["status"] == "FINISHED")]
    if chosen.empty:
        raise UsageError(
            f"The experiment {experiment!r} has no finished run of the overlay {overlay}: "
            f"`python -m specdec.run +experiment={overlay}` makes them."
        )
    newest = chosen.drop_duplicates(f"params.{each}")
    return [open_run(tracking_uri, str(run_id)) for run_id in reversed(newest.index)]


def own_runs(tracking_uri: str, experiment: str, chosen: Sequence[str] = ()) -> list[Run]:
    """Return the runs of the ids or folders in `chosen`; without any those of the overlay `notebooks`, and where it was
    never run the newest finished run of every drafter of the experiment, oldest first. UsageError if one of `chosen` is
    no run, or the experiment has no finished one.
    """
    if chosen:
        return open_runs(tracking_uri, chosen)
    table = load_runs(tracking_uri, experiment)
    finished = table[table["status"] == "FINISHED"]
    if finished.empty or OVERLAY in set(finished.get("params.experiment_name", ())):
        return overlay_runs(tracking_uri, experiment)
    newest = finished.drop_duplicates("params.drafter.name")
    return [open_run(tracking_uri, str(run_id)) for run_id in reversed(newest.index)]


def own_run(tracking_uri: str, experiment: str, chosen: Sequence[str] = ()) -> Run:
    """Return the first run of `chosen`, run ids or folders of runs; without any, the newest finished run. UsageError as
    `own_runs`.
    """
    return open_runs(tracking_uri, chosen[:1])[0] if chosen else latest_run(tracking_uri, experiment)


def study(tracking_uri: str, experiment: str, name: str, chosen: Sequence[str] = ()) -> tuple[Section, ...]:
    """Return what a study found: the first of its name in `chosen`, run ids or folders, or else the newest finished one
    of the experiment; without one what a committed one found, if any, with the sentence that says what makes one.
    """
    try:
        own = [known for known in chosen_studies(tracking_uri, chosen) if known.kind == name]
        return (own[0].findings() if own else latest_study(tracking_uri, experiment, name)).sections
    except UsageError as error:
        committed: tuple[Section, ...] = ()
        if name == "serving":
            committed = committed_sections()
        elif name == "batching":
            first, *others = committed_study().findings().sections
            committed = (replace(first, text=(*first.text, committed_in_words())), *others)
        return _stand_in(committed, name, error)


def _stand_in(committed: tuple[Section, ...], name: str, error: UsageError) -> tuple[Section, ...]:
    """Return committed sections, the first of which says what makes one's own; without any, a section that says it."""
    first, *others = committed or (Section(name),)
    return (replace(first, text=(*first.text, str(error))), *others)


def live(overlay: str, tracking_uri: str, experiment: str, chosen: Sequence[str] = ()) -> tuple[Section, ...]:
    """Return what runs of an overlay found, which decoded live (see `LIVE`): those of `chosen` that are no studies, or
    else the newest of the overlay. Where there are none, say what makes them, behind what a committed one found.
    """
    each, sections_of, committed = LIVE[overlay]
    try:
        runs = open_runs(tracking_uri, [name for name in chosen if not chosen_studies(tracking_uri, [name])])
        return sections_of(runs or overlay_runs(tracking_uri, experiment, overlay, each))
    except UsageError as error:
        return _stand_in(committed(), overlay, error)


def _heads(runs: Sequence[Run]) -> tuple[Section, ...]:
    """Compare Medusa and grounded heads, and show for each the rates by category as the papers define them."""
    return (comparison_section(runs), *(replace(papers_section(run), title=run.title) for run in runs))


def _shapes(runs: Sequence[Run]) -> tuple[Section, ...]:
    """Set structures side by side, and say whose outputs are refuted and how many loop."""
    names = [run.params["structure.name"] for run in runs]
    section = shape_section(runs).ending(loops_in_words(runs, names))
    return (section.beginning(refuted_in_words(runs, names)),)


def _gain(runs: Sequence[Run]) -> tuple[Section, ...]:
    """Show what the newest run gains with grounded heads, and say if its outputs are refuted and how many loop."""
    return (gain_section(runs[-1]).ending(loops_note(runs[-1].metrics)).beginning(runs[-1].refuted),)


Sections = tuple[Section, ...]
LIVE: dict[str, tuple[str, Callable[[Sequence[Run]], Sections], Callable[[], Sections]]] = {
    # overlay: the parameter that tells its runs apart, sections of these, and what stands in for them
    "chain_rows_tree": ("structure.name", _shapes, tuple),
    "heads": ("drafter.name", _heads, tuple),
    "grounded_bars": ("drafter.name", _gain, lambda: (committed_section(),)),
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
