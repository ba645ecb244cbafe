"""Writes what a run found into its folder (`summary.json`, `account.json`, `report.md`, the figures, `trace.html`), all
from the other files there, so that these can be made again at any time; and its note in MLflow.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..figures import style
from ..findings.run_findings import RunFindings, run_findings
from ..read.runs import open_folder
from .html import section_blocks
from .trace import trace_html

_PICTURE = "curve_tokens_per_round"
FILES = "`report.md`, `figures/` and `trace.html` are among the run's artifacts."


def write_run(folder: Path) -> RunFindings:
    """Compute the findings of the run in `folder`, write them there and return them. UsageError for a missing file."""
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
        for name, figure in section.figures:
            style.save(figure, folder / "figures", name)
    (folder / "report.md").write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    (folder / "trace.html").write_text(trace_html(run.traces()), encoding="utf-8")
    return findings


def run_note(findings: RunFindings, address: Callable[[str], str], chart: str = "") -> str:
    """Return the note of a run in MLflow as Markdown: its verdict, the picture of theory over measurement, its table,
    and where the rest is. address: returns that of a file of the run; chart: that of the chart behind the picture, or
    "".
    """
    summary = replace(findings.sections[0], figures=())
    picture = [_PICTURE for section in findings.sections for name, _ in section.figures if name == _PICTURE]
    shown = [f"![Tokens per round over gamma]({address(f'figures/{name}.svg')})" for name in picture]
    verdict, *others = section_blocks(summary, "###", [])[1:]
    verdict += f" [Theory over measurement]({chart})" * bool(chart and shown)  # seen before the note is unfolded
    return "\n\n".join([verdict, *shown, FILES, *others]) + "\n"  # MLflow cuts the end of long notes
