"""Run one study of a plan: open the parts, write its tables, have `analysis` read them, log."""

from collections import Counter
from pathlib import Path
from typing import Any

import pandas as pd
from rich import get_console

from specdec.analysis.figures import style
from specdec.analysis.pages.html import Chapter, write_report
from specdec.analysis.sections import About, Findings, findings
from specdec.clock import clock_for
from specdec.errors import Interrupted
from specdec.folder.earlier_runs import EarlierRuns, KeptRun
from specdec.folder.identity import RunIdentity
from specdec.folder.results import ResultsFolder
from specdec.folder.resumption import begun, standing
from specdec.plan.plan import Plan
from specdec.progress import detail, stage, tell, verbose
from specdec.session.identify import arithmetic_notes, identify, run_facts
from specdec.session.parts import Parts, loading, open_tracked
from specdec.studies.base.contract import Bench, Study, studies
from specdec.terminal import from_here, print_links
from specdec.tracking import writer as tracking

_LATE = "no time left (study.budget_seconds; null: no bound)"
_SIMULATED = "Simulated: "
_ANSWERS = 4  # of a study's sections, the first ones; its report has all


def run_study(plan: Plan, folder: Path, earlier: EarlierRuns | None = None) -> Findings | KeptRun:
    """Run and log a study, or begin a killed one again; arguments and errors are those of `run_experiment`."""
    assert plan.study is not None
    study = studies.build(plan.study)
    with loading(plan):
        parts = open_tracked(plan)
        identity = identify(parts)
    with begun(plan.resume, folder, identity, earlier, by_prompt=False) as beginning:
        if isinstance(beginning, KeptRun):
            return beginning
        with standing(beginning.results, 0, 0):
            try:
                return _run(parts, identity, beginning.results, study)
            except Interrupted as stopped:
                first = str(stopped).partition(";")[0]
                again = "a study writes its tables at its end, and the same command begins it again."
                raise type(stopped)(f"{first}; {again}") from None


def _run(parts: Parts, identity: RunIdentity, results: ResultsFolder, study: Study) -> Findings:
    plan, folder = parts.plan, results.folder
    assert plan.study is not None
    name = str(plan.study["name"])
    for note in arithmetic_notes(parts):
        detail(note)
    title = run_facts(parts).title(identity.environment, shape=False)
    tags = identity.tags | {"specdec.role": "study", "specdec.study": name}
    run_name = f"{name}: {parts.chosen.label}, {parts.prompts.name}"
    logged: dict[str, Any] = {"name": run_name, "params": identity.params, "tags": tags}
    with tracking.tracked_run(plan.tracking, **logged, results=folder) as tracked:
        bench = Bench(parts, parts.target.clock() or clock_for(parts.target.device), folder, tracked.heartbeat)
        tables = study.run(bench)
        skipped = {**parts.prompts.skipped, _LATE: Counter(bench.late)}
        lines = [(reason, category, count) for reason, counts in skipped.items() for category, count in counts.items()]
        tables = {"skipped": pd.DataFrame(lines, columns=["reason", "category", "count"]), **tables}
        results.compact()
        for table_name, table in tables.items():
            table.to_parquet(folder / f"{table_name}.parquet", index=False)
        resampling = plan.measurement.bootstrap, plan.seed
        about = About(title, parts.prompts.name, tags["time"] == "simulated", *resampling, bench.looping)
        with stage("Analyse", "tables, figures, report"):
            found = findings(name, tables, about)
            refuted = {"refuted": found.refuted} if found.refuted else {}
            results.write_json("study.json", {"study": name, **vars(about), "metrics": found.metrics, **refuted})
            for section in found.sections:
                for figure_name, figure in section.figures:
                    style.save(figure, folder / "figures", figure_name)
            write_report(folder, run_name, [Chapter(title, found.sections)])
        tracked.metrics(found.metrics)
        tracked.curves(found.curves)
        if found.refuted:
            tracked.tags({"specdec.outputs": "refuted"})
        tracked.artifacts()
    for section in found.sections if verbose() else found.sections[:_ANSWERS]:
        twice = _SIMULATED if section.title.startswith(_SIMULATED) else ""
        tell(f"{section.title}: {section.text[0].removeprefix(twice)}")
    print_links(get_console(), {"results": from_here(folder / "report.html"), "browse": tracked.shown_link})
    return found
