"""Writes the note of a run in MLflow: its verdict, its table, and where the rest is. Markdown."""

from dataclasses import replace

from ..runs.run_findings import RunFindings
from .html import section_blocks

FILES = "`report.md`, `figures/` and `trace.html` are among the run's artifacts."


def run_note(found: RunFindings, overlay: str = "") -> str:
    """Return the note of a run.

    Args:
        overlay: address of the chart that lays theory over measurement; "" without one.
    """
    chart = f"[Theory over measurement]({overlay}). " if overlay else ""
    table = replace(found.sections[0], figures=())
    return "\n\n".join([chart + FILES, *section_blocks(table, "###", [])]) + "\n"  # MLflow cuts the end of long notes
