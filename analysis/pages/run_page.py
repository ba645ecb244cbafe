"""Writes what a run found into its folder: `summary.json`, `account.json`, `report.md`, the figures and `trace.html`.

Everything comes from the other files of that folder, so these five can be deleted and made again at any time.
"""

import json
from pathlib import Path
from typing import Any

from ..figures import style
from ..read.runs import Run, open_folder
from ..runs.run_findings import RunFindings, run_findings
from .html import section_blocks
from .trace import trace_html


def write_run(folder: Path) -> RunFindings:
    """Compute the findings of the run in `folder`, write them there and return them.

    Raises:
        UsageError: no run's folder, or one that lacks a file.
    """
    run = open_folder(folder)
    found = run_findings(run)
    _write_json(folder / "account.json", found.account)
    _write_json(folder / "summary.json", found.summary)
    (folder / "report.md").write_text(_markdown(run, found), encoding="utf-8")
    for section in found.sections:
        for name, figure in section.figures:
            style.save(figure, folder / "figures", name)
    (folder / "trace.html").write_text(trace_html(run.traces()), encoding="utf-8")
    return found


def _markdown(run: Run, found: RunFindings) -> str:
    prompts, standing = run.environment()["prompts"], run.standing()
    part = f" ({standing.part})" if standing and standing.partial else ""
    cut = f" {standing.note}" if standing and standing.left_out else ""
    blocks = [f"# {run.title}{part}", f"Prompts: {prompts['name']}, {prompts['count']} of them.{cut}"]
    for section in found.sections:
        blocks += section_blocks(section, "##", [f"figures/{name}.svg" for name, _ in section.figures])
    return "\n\n".join(blocks) + "\n"


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, default=str) + "\n", encoding="utf-8")
