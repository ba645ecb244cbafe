"""Shows sections in notebooks, and finds the runs that the overlay `notebooks` made."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from specdec.errors import UsageError

from ..account.shape_account import shape_section
from ..findings.compare import comparison_section
from ..findings.run_sections import papers_section
from ..read.mlflow_runs import latest_run, load_runs, open_run, open_runs
from ..read.runs import Run
from ..read.studies import chosen_studies, latest_study
from ..research.gpu_limit import RESULT, demonstration, read_gpu
from ..research.grounded_gain import committed_section, gain_section
from ..sections import Section
from ..studies.batching import committed_in_words, committed_study
from ..studies.serving import committed_sections
from .html import markdown_table

OVERLAY = "notebooks"
SHAPES_OVERLAY = "chain_rows_tree"
HEADS_OVERLAY = "heads"
BARS_OVERLAY = "grounded_bars"


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
    first.

    Raises:
        UsageError: there is none.
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
    """Return the runs that a person chose; without a choice those of the overlay `notebooks`, and where it was never
    run the newest finished run of every drafter of the experiment, oldest first.

    Args:
        chosen: run ids of the store, or folders of runs.
    Raises:
        UsageError: one of `chosen` is no run, or the experiment has no finished one.
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
    """Return the first run of `chosen`, run ids or folders of runs; without any, the newest finished run.

    Raises:
        UsageError: as `own_runs`.
    """
    return own_runs(tracking_uri, experiment, chosen[:1])[0] if chosen else latest_run(tracking_uri, experiment)


def chosen_runs(tracking_uri: str, chosen: Sequence[str]) -> list[Run]:
    """Return the runs among what a person chose, which are all that are no studies.

    Raises:
        UsageError: one is neither.
    """
    runs = [name for name in chosen if not chosen_studies(tracking_uri, [name])]
    return open_runs(tracking_uri, runs)


def study(tracking_uri: str, experiment: str, name: str, chosen: Sequence[str] = ()) -> tuple[Section, ...]:
    """Return what a study found: the first of its name in `chosen`, run ids or folders, or else the newest finished one
    of the experiment; without one, a section that says what makes one.
    """
    try:
        return _study(tracking_uri, experiment, name, chosen)
    except UsageError as error:
        return (Section(name, (str(error),)),)


def _study(tracking_uri: str, experiment: str, name: str, chosen: Sequence[str]) -> tuple[Section, ...]:
    own = [known for known in chosen_studies(tracking_uri, chosen) if known.kind == name]
    return (own[0].findings() if own else latest_study(tracking_uri, experiment, name)).sections


def server_under_load(tracking_uri: str, experiment: str, chosen: Sequence[str] = ()) -> tuple[Section, ...]:
    """Show study `serving`, of `chosen` or the newest; without one, what makes one, and what committed ones found."""
    try:
        return _study(tracking_uri, experiment, "serving", chosen)
    except UsageError as error:
        return (*committed_sections(), Section("serving", (str(error),)))


def live_shapes(tracking_uri: str, experiment: str, chosen: Sequence[str] = ()) -> tuple[Section, ...]:
    """Compare chain, rows and tree, decoded live: the runs of `chosen`, or else of the overlay `chain_rows_tree`.

    Where there are none, say what makes them.
    """
    try:
        runs = chosen_runs(tracking_uri, chosen)
        return (shape_section(runs or overlay_runs(tracking_uri, experiment, SHAPES_OVERLAY, each="structure.name")),)
    except UsageError as error:
        return (Section(SHAPES_OVERLAY, (str(error),)),)


def live_heads(tracking_uri: str, experiment: str, chosen: Sequence[str] = ()) -> tuple[Section, ...]:
    """Compare Medusa and grounded heads as the runs of `chosen`, or else the overlay `heads`, decoded them live, and
    show for each the rates by category as the papers define them; or say what makes these runs.
    """
    try:
        runs = chosen_runs(tracking_uri, chosen) or overlay_runs(tracking_uri, experiment, HEADS_OVERLAY)
    except UsageError as error:
        return (Section(HEADS_OVERLAY, (str(error),)),)
    return (comparison_section(runs), *(replace(papers_section(run), title=run.title) for run in runs))


def heads_in_one_session(tracking_uri: str, experiment: str) -> tuple[Section, ...]:
    """Show plain decoding, independent and grounded heads as the overlay `grounded_bars` decoded them in one session;
    without such a run, what makes one, and what a committed one found.
    """
    try:
        return (gain_section(overlay_runs(tracking_uri, experiment, BARS_OVERLAY)[-1]),)
    except UsageError as error:
        committed = committed_section()
        return (replace(committed, text=(*committed.text, str(error))),)


def batches(tracking_uri: str, experiment: str, chosen: Sequence[str] = ()) -> tuple[Section, ...]:
    """Return what study `batching` found, of `chosen` or the newest; without one, what the committed run found, with
    where it was made and the command that makes one.
    """
    try:
        return _study(tracking_uri, experiment, "batching", chosen)
    except UsageError as error:
        first, *others = committed_study().findings().sections
        return (replace(first, text=(*first.text, committed_in_words(), str(error))), *others)


def gpu_limit(path: Path = RESULT) -> tuple[Section, ...]:
    """Return what the committed GPU measurement found; without one, what the script makes of toys on the spot, which
    says in every section that it is no measurement.
    """
    return (read_gpu(path) or demonstration()).sections()


def answers(runs: Sequence[Run], sections: Sequence[Section]) -> str:
    """Return the first sentence of a section for each run, under its drafter's name: Markdown."""
    return "\n".join(
        f"- **{run.params['drafter.name']}**: {section.text[0]}" for run, section in zip(runs, sections, strict=True)
    )


def firsts(*sections: Section) -> str:
    """Return the first sentence of each section, under its title: Markdown."""
    return "\n".join(f"- **{section.title}**: {section.text[0]}" for section in sections)
