"""Writes what a run found into its folder (`summary.json`, `account.json`, `report.md`, the figures, `trace.html`) and
into its note in MLflow.

Everything comes from the other files of that folder, so these five can be deleted and made again at any time.
"""

import json
from dataclasses import replace
from pathlib import Path

from ..figures import style
from ..findings.run_findings import RunFindings, run_findings
from ..read.runs import open_folder
from .html import section_blocks
from .trace import trace_html

FILES = "`report.md`, `figures/` and `trace.html` are among the run's artifacts."


def write_run(folder: Path) -> RunFindings:
    """Compute the findings of the run in `folder`, write them there and return them.

    Raises:
        UsageError: no run's folder, or one that lacks a file.
    """
    run = open_folder(folder)
    findings = run_findings(run)
    for name, content in (("account.json", findings.account), ("summary.json", findings.summary)):
        (folder / name).write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
    prompts, standing = run.environment()["prompts"], run.standing()
    part = f" ({standing.part})" if standing and standing.partial else ""
    cut = f" {standing.note}" if standing and standing.left_out else ""
    blocks = [f"# {run.title}{part}", f"Prompts: {prompts['name']}, {prompts['count']} of them.{cut}"]
    for section in findings.sections:
        blocks += section_blocks(section, "##", [f"figures/{name}.svg" for name, _ in section.figures])
    (folder / "report.md").write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    for section in findings.sections:
        for name, figure in section.figures:
            style.save(figure, folder / "figures", name)
    (folder / "trace.html").write_text(trace_html(run.traces()), encoding="utf-8")
    return findings


def run_note(findings: RunFindings, overlay: str = "") -> str:
    """Return the note of a run in MLflow as Markdown: its verdict, its table, and where the rest is.

    Args:
        overlay: address of the chart that lays theory over measurement; "" without one.
    """
    chart = f"[Theory over measurement]({overlay}). " if overlay else ""
    table = replace(findings.sections[0], figures=())
    return "\n\n".join([chart + FILES, *section_blocks(table, "###", [])]) + "\n"  # MLflow cuts the end of long notes
