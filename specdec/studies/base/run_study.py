"""Run one study from a typed config: build the parts, write its tables, have `analysis` read them, log."""

from functools import partial
from pathlib import Path
from typing import Any

from rich import get_console

from specdec.analysis.figures import style
from specdec.analysis.findings import About, Findings, findings
from specdec.analysis.pages.html import Chapter, write_report
from specdec.clock import clock_for
from specdec.config import RunConfig, validated
from specdec.errors import UsageError
from specdec.folder.earlier_runs import EarlierRuns, KeptRun
from specdec.folder.identity import RunIdentity
from specdec.folder.results import ResultsFolder
from specdec.folder.resumption import begun, standing
from specdec.plan.batch_checks import refuse_batches
from specdec.plan.beside import refuse_several
from specdec.plan.budget import refuse_budget, refuse_null
from specdec.progress import detail, verbose
from specdec.sampling import SamplingConfig
from specdec.session.dtypes import arithmetic_notes
from specdec.session.identify import identify, run_facts
from specdec.session.parts import Parts, limited, open_parts
from specdec.studies.base.contract import Bench, Study, studies
from specdec.terminal import from_here, print_links
from specdec.tracking import writer as tracking

_ANSWERS = 4  # of a study's sections, the first ones; its report has all


def run_study(config: RunConfig, folder: Path, earlier: EarlierRuns | None = None) -> Findings | KeptRun:
    """Run and log a study, and return what was found.

    Args:
        folder, earlier: as `run_experiment` has them; a study that was killed begins again.
    Raises:
        SpecdecError: see `specdec.errors`.
    """
    study = checked_study(config)
    parts = open_parts(config)
    identity = identify(config, parts)
    config = limited(config, parts.target)
    with begun(config.resume, folder, identity, earlier, by_prompt=False) as beginning:
        say = partial(get_console().print, markup=False, highlight=False)
        if isinstance(beginning, KeptRun):
            say(f"Kept: {beginning.metrics.folder} holds this study, finished.", soft_wrap=True)
            return beginning
        if beginning.sentence:
            say(beginning.sentence, soft_wrap=True)
        with standing(beginning.results, 0, 0):
            return _run(config, parts, identity, beginning.results, study)


def checked_study(config: RunConfig) -> Study:
    """Make the study of a configuration.

    Raises:
        UsageError: bad values of its own, or of a run that is no study.
    """
    assert config.study is not None
    study, name = studies.build(config.study), str(config.study["name"])
    refuse_several(config, f"study {name!r} has its own drafters", "use measurement.drafters=[]")
    refuse_batches(config, f"study {name!r}")
    refuse_budget(config, f"study {name!r}")
    refuse_null(config, f"study {name!r}")
    sampling = validated(SamplingConfig, config.sampling, where="sampling")
    if not sampling.greedy:
        raise UsageError(
            f"Bad value sampling.temperature={sampling.temperature}: study {name!r} replays greedy texts or sets "
            "temperatures itself; use sampling=greedy."
        )
    return study


def _run(config: RunConfig, parts: Parts, identity: RunIdentity, results: ResultsFolder, study: Study) -> Findings:
    """Run and log a study in its folder."""
    assert config.study is not None
    name, folder = str(config.study["name"]), results.folder
    for note in arithmetic_notes(parts):
        detail(note)
    title = run_facts(parts, config.measurement.limit).title(identity.environment, shape=False)
    tags = identity.tags | {"specdec.role": "study", "specdec.study": name}
    run_name = f"{name}: {parts.label}, {parts.prompts.name}"
    logged: dict[str, Any] = {"name": run_name, "params": identity.params, "tags": tags}
    with tracking.tracked_run(config.tracking, **logged, results=folder) as tracked:
        clock = parts.target.clock() or clock_for(parts.target.device)
        tables = study.run(Bench(config, parts, clock, folder, tracked.heartbeat))
        results.compact()
        for table_name, table in tables.items():
            table.to_parquet(folder / f"{table_name}.parquet", index=False)
        about = About(title, parts.prompts.name, tags["time"] == "simulated", config.measurement.bootstrap, config.seed)
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
    say = partial(get_console().print, markup=False, highlight=False)
    for section in found.sections if verbose() else found.sections[:_ANSWERS]:
        say(f"{section.title}: {section.text[0]}")
    report = folder / "report.html"
    browse = tracked.link if verbose() else tracked.short_link
    print_links(get_console(), {"results": str(report) if verbose() else from_here(report), "browse": browse})
    return found
