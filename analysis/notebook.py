"""What notebooks share: showing a section, and finding the runs that the overlay `notebooks` made."""

from collections.abc import Sequence

from specdec.errors import UsageError

from .html import markdown_table
from .load import Run, load_runs, open_run
from .sections import Section

OVERLAY = "notebooks"
COMMAND = f"python -m specdec.run +experiment={OVERLAY}"


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


def overlay_runs(tracking_uri: str, experiment: str, overlay: str = OVERLAY) -> list[Run]:
    """The newest finished run of each drafter that an overlay has left, oldest first. UsageError if there is none."""
    table = load_runs(tracking_uri, experiment)
    named = table["params.experiment_name"] == overlay if "params.experiment_name" in table else table["status"] == ""
    chosen = table[named & (table["status"] == "FINISHED")]
    if chosen.empty:
        raise UsageError(
            f"The experiment {experiment!r} has no finished run of the overlay {overlay}: `{COMMAND}` makes them."
        )
    newest = chosen.drop_duplicates("params.drafter.name")
    return [open_run(tracking_uri, str(run_id)) for run_id in reversed(newest.index)]


def answers(runs: Sequence[Run], sections: Sequence[Section]) -> str:
    """The first sentence of a section for each run, under its drafter's name: Markdown."""
    return "\n".join(
        f"- **{run.params['drafter.name']}**: {section.text[0]}" for run, section in zip(runs, sections, strict=True)
    )
