"""One run of a plan: open, calibrate, decode, analyse, log."""

import logging
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich import get_console

from specdec import ranks
from specdec.analysis.findings.run_findings import RunFindings
from specdec.analysis.pages.run_page import run_note, write_run
from specdec.analysis.read.facts import PLAN_FILE, RunStatus
from specdec.analysis.read.runs import read_traces
from specdec.analysis.sections import counted
from specdec.disturbance import watch_of
from specdec.environment import cpu
from specdec.errors import EnvironmentFault, Interrupted, SpecdecError
from specdec.folder.earlier_runs import EarlierRuns, KeptRun
from specdec.folder.identity import RunIdentity
from specdec.folder.results import ROUNDS, ResultsFolder
from specdec.folder.resumption import Beginning, begun, standing, write_sittings
from specdec.models.arithmetic import format_name, model_arithmetic
from specdec.models.gguf_model import gguf_metadata, stored_weights
from specdec.models.load import model_path, resolve_device, resolve_dtype
from specdec.models.model_files import is_gguf
from specdec.plan.plan import Plan
from specdec.plan.time_budget import TimeBudget
from specdec.progress import detail, stage, tell, verbose
from specdec.session.identify import identify, run_facts, run_name
from specdec.session.kept_answers import claim_notes, predicted_speedups
from specdec.session.measure import CALIBRATION, measure
from specdec.session.parts import Parts, loading, open_parts, open_tracked
from specdec.session.workers import check_workers, divided_threads, workers_note
from specdec.signals import raise_swallowed
from specdec.terminal import print_trace, show_run
from specdec.text.streams import read_streams, write_streams
from specdec.text.writing import read_json
from specdec.tracking import writer as tracking
from specdec.tracking.views import EXPERIMENT, NOTE, RUN, artifact, overlay
from specdec.tracking.writer import TrackedRun

logger = logging.getLogger(__name__)

_ANALYSED_S = 4.0  # seconds that the analysis of a drafter takes, on one core of an AMD EPYC
_TRACED_ROUNDS = 25  # of each generation in the terminal; trace.html has them all
_TOKEN_BYTES = 100  # of a written token: its round in two tables, its id, its text
_PAGE_BYTES = 32 << 20  # reports, figures, traces and the tracking database
_UNTOLD = re.compile(r"\((R|TM)\)| CPU| Processor| @.*")  # parts of a processor's name that tell nothing


def run_experiment(
    plan: Plan, folder: Path, earlier: EarlierRuns | None = None, since: float | None = None
) -> RunFindings | KeptRun:
    """Measure what a plan says, log it, and return what was found. Results go to `folder`, unless an earlier run of the
    same identity goes on in its own (`resumption`); runs elsewhere that may go on, or be kept, are `earlier`. Its time
    budget counts from `since`, when its command began (`time.monotonic`). Raises SpecdecError: see `specdec.errors`;
    what was decoded before is on disk.
    """
    budget = TimeBudget(plan.budget_seconds, since=since)
    if not verbose():
        tell(opening_line(plan, brief=True))
    detail(opening_line(plan))
    with loading(plan):
        parts = open_tracked(plan)
        check_workers(parts)
        check_space(folder, parts)
        predicted = predicted_speedups(parts)
        with divided_threads(parts):
            identity = identify(parts)
    with divided_threads(parts), begun(plan.resume, folder, identity, earlier) as beginning:
        if isinstance(beginning, KeptRun):
            return beginning
        if (made := beginning.sittings[-1]["compilation"]) != parts.target.compilation:
            target = replace(plan.target, compile={"inductor": True, None: False}.get(made, made))
            parts = open_parts(replace(plan, target=target))
            identity = identify(parts)
        facts = run_facts(parts, predicted)
        notes = [*facts.notes, *claim_notes(plan), *workers_note(parts)]
        if parts.target.clock() is None and (blind := watch_of(parts.target.device).blind):
            notes.append(blind)
        more = [counted(sitting["prompts_kept"], "prompt") for sitting in beginning.sittings[1:]]
        if more:
            notes.append(
                f"Decoded in {len(more) + 1} sittings: interrupted after {', '.join(more)}. Calibration and cost model "
                "are of the first one."
            )
        beginning.results.write_json(PLAN_FILE, asdict(replace(facts, notes=tuple(notes))))
        for note in notes:
            detail(note)
        budget.lap("opening")
        return _run(parts, identity, beginning, budget, notes)


def check_space(folder: Path, parts: Parts) -> None:
    """Refuse, by an EnvironmentFault, a run that may write more than is free: a full disk loses its results."""
    texts = parts.turns * len(parts.arms)
    needed = texts * min(parts.limit, parts.target.context_length) * _TOKEN_BYTES + _PAGE_BYTES
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise EnvironmentFault(
            f"The disk of {folder} has {free / 2**20:,.0f} MB free, and this run may write {needed / 2**20:,.0f} MB: "
            "free some space, write elsewhere with hydra.run.dir=FOLDER, or lower prompts.limit."
        )


def _run(
    parts: Parts, identity: RunIdentity, beginning: Beginning, budget: TimeBudget, printed: Sequence[str]
) -> RunFindings:
    """Decode what is left of a run, analyse it, and log it; `printed` are the notes that were shown."""
    results, folder, plan, prompts = beginning.results, beginning.results.folder, parts.plan, parts.turns
    about: dict[str, Any] = {"name": run_name(parts, identity), "params": identity.params, "tags": identity.tags}
    with tracking.tracked_run(plan.tracking, **about, results=folder) as tracked:
        tracked.dataset(identity.environment["prompts"])
        try:
            with standing(results, prompts, len(beginning.kept), budget) as progress:

                def alive() -> None:
                    progress()
                    tracked.heartbeat()
                    raise_swallowed()

                write_sittings(identity, beginning, tracked.run_id)
                with ranks.together():
                    ranks.given((dict(beginning.kept), results.read_json(CALIBRATION)))
                    measure(parts, identity.cell, beginning, alive, budget)
                if plan.measurement.record:
                    write_streams(folder / "streams.jsonl", read_streams(folder / "generations.jsonl").streams)
                del parts  # models and texts: the report is made of the files alone, and gets the memory
                left_out = len(budget.left_out)
                results.write_status("running", budget.cut(prompts), prompts - left_out, prompts, left_out)
                expected = _ANALYSED_S * (1 + len(plan.measurement.drafters))
                with stage("Analyse", "intervals, account, figures", expected=expected):
                    found = write_run(folder)  # what is not left out is whole
        except SpecdecError as error:
            results.compact()  # what was decoded so far stays, in one piece
            if isinstance(error, Interrupted):
                _tell_part(folder, tracked)
            tracked.artifacts()
            raise
        tracked.metrics(found.metrics)
        tracked.curves(found.curves)
        whole = {"specdec.partial": ""} if len(beginning.sittings) > 1 else {}  # an earlier sitting may have said so
        cut = {"specdec.left_out": f"{left_out} of {prompts} prompts"} if left_out else {}
        refuted = {"specdec.outputs": "refuted"} if found.refuted else {}
        tracked.tags({"alpha_source": found.alpha_source, **whole, **cut, **refuted})
        for key, lines in found.overlays().items():
            tracked.curve_children(key, lines)
        tracked.artifacts()
        chart = overlay(EXPERIMENT, RUN, "curve/tokens_per_round")
        tracked.tags({NOTE: run_note(found, partial(artifact, RUN), chart)})
    budget.lap("report")
    detail(budget.stages)
    if plan.measurement.trace:
        print_trace(read_traces(folder / "traces.json"), get_console(), rounds=_TRACED_ROUNDS)
    show_run(found, get_console(), folder, tracked, printed)
    return found


def follow_experiment(plan: Plan, folder: Path) -> None:
    """Make the calls of rank 0 in the same order, on this rank's share of the target's weights. Nothing is kept: the
    caller drops the folder. SpecdecError: see `run_experiment`; also where rank 0 ended.
    """
    parts = open_parts(plan)
    with ranks.together():
        kept, calibration = ranks.given(None)
        results = ResultsFolder(folder)
        if calibration:
            results.write_json(CALIBRATION, calibration)
        measure(parts, "", Beginning(results, kept, ()), lambda: None, TimeBudget(None))


def _tell_part(folder: Path, tracked: TrackedRun) -> None:
    """Analyse, log and show the prompts that a run has done when a signal ends it. A second signal ends this, too."""
    status = RunStatus.read(folder)
    if status is None or not status.partial or not (folder / ROUNDS).is_file():
        return  # nothing was decoded, or only the analysis is missing, which the next sitting makes
    try:
        found = write_run(folder)
    except Exception as error:  # the signal is what ends the run
        logger.warning("The prompts that are done could not be analysed: %s", error)
        return
    tracked.metrics(found.metrics)  # curves wait for the whole run: a chart would keep both
    note = f"**{status.part.capitalize()}.** {run_note(found, partial(artifact, RUN))}"
    tracked.tags({"alpha_source": found.alpha_source, "specdec.partial": status.part, NOTE: note})
    show_run(found, get_console(), folder, tracked)


def opening_line(plan: Plan, *, brief: bool = False) -> str:
    """Return model, number format and its reason, device, prompts, drafts and time budget in one sentence; a `brief`
    one leaves the reason, lengths, the drafts and the key of the budget out, and names the processor.
    """
    measurement, structure, seconds = plan.measurement, plan.chosen.structure, plan.budget_seconds
    names = ", ".join(dict.fromkeys((plan.chosen.method, *measurement.drafters)))
    limit, tokens = plan.prompts.config.limit, measurement.max_new_tokens
    many = "all prompts" if limit is None else f"at most {limit} prompts"
    times = f", {measurement.repeats} times" if measurement.repeats > 1 else ""
    opening = f"{names} on {_model(plan, brief)}; {many} of {plan.prompts.config.name}{times}"
    if brief:
        return f"{opening}." if seconds is None else f"{opening} in {seconds:g} s."
    length = "whole texts" if tokens is None else f"{tokens} tokens each"
    sizes = ", ".join(map(str, sorted({*measurement.gammas, structure.gamma})))
    depth = "gamma" if structure.name == "chain" else f"{structure.name}, depth"
    bound = "no time budget"
    if seconds is not None:
        bound = (
            f"time budget {seconds:g} s until the last prompt is decoded (measurement.budget_seconds; null: no bound)"
        )
    return f"{opening}, {length}; {depth} {sizes}; {bound}."


def _model(plan: Plan, brief: bool) -> str:
    """Return the target's model with format and device, as far as its configuration has them."""
    target = plan.target_values
    if "dtype" not in target or "device" not in target:
        return plan.model
    device = resolve_device(target["device"])
    dtype, where = _dtype(target, device), str(device)
    if device.type == "cpu":
        processor = (_UNTOLD.sub("", cpu()["model"]) if brief else "") or where
        where = f"{processor} ({counted(plan.measurement.threads or torch.get_num_threads(), 'thread')})"
    return f"{plan.model} in {dtype.partition(' (')[0] if brief else dtype}, on {where}"


def _dtype(target: Mapping[str, Any], device: torch.device) -> str:
    """Return the number format to compute in, and why."""
    named = resolve_dtype(target["dtype"])
    if named is not None:
        return f"{format_name(named)} (as target.dtype says)"
    name, own = model_path(str(target.get("model", ""))), None
    if is_gguf(name):
        form, own = stored_weights(gguf_metadata(name))
        if own is None:
            return f"float32 (to which the {form} weights of its file are dequantised)"
    if values := read_json(Path(name) / "config.json"):  # in the model's folder; not of a hub id or a GGUF file
        own = getattr(torch, str(values.get("dtype") or values.get("torch_dtype")), None)
    if not isinstance(own, torch.dtype):
        return "the model's own number format (float32 where this machine would emulate it)"
    found = model_arithmetic(None, own, device)
    if found.used == own:
        return f"{format_name(own)} (the model's own, in which this machine computes)"
    return f"{format_name(found.used)} (this machine would emulate {format_name(own)}, the model's own)"
