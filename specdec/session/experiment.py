"""One run from a typed configuration: build, calibrate, decode, analyse, log."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich import get_console

from specdec import ranks
from specdec.analysis.cost.cost_report import cost_report
from specdec.analysis.findings import counted
from specdec.analysis.pages.run_page import run_note, write_run
from specdec.analysis.read.facts import PLAN_FILE, RunStatus
from specdec.analysis.read.traces import read_traces
from specdec.analysis.runs.run_findings import RunFindings
from specdec.clock import Clock, clock_for
from specdec.config import RunConfig
from specdec.errors import Interrupted, ModelLoadError, SpecdecError
from specdec.folder.earlier_runs import EarlierRuns, KeptRun
from specdec.folder.identity import RunIdentity
from specdec.folder.results import ROUNDS, ResultsFolder, read_json
from specdec.folder.resumption import Beginning, begun, standing, write_sittings
from specdec.peers import OpenedPeers, Work, opened
from specdec.plan.beside import settled
from specdec.plan.budget import TimeBudget, budget_of
from specdec.plan.opening_line import opening_line
from specdec.progress import detail, progress_bar, stage, tell, verbose
from specdec.prompts import Prompt
from specdec.sampling import generator_for
from specdec.session.advice_key import predicted_speedups
from specdec.session.batched_session import BatchedSession
from specdec.session.disk_space import check_space
from specdec.session.foreign_claims import claim_notes
from specdec.session.identify import identify, run_facts, run_name
from specdec.session.parts import Parts, limited, open_parts, prepare
from specdec.session.session import Answers, Session, conversations, decode_conversation
from specdec.session.workers import check_workers, decode_by_workers, divided_threads, workers_note, workers_of
from specdec.signals import raise_swallowed
from specdec.targets import Target
from specdec.targets.causal import Causal
from specdec.terminal import print_lines, print_trace, run_links, show_run
from specdec.text.streams import read_streams, write_streams
from specdec.timing.calls import calibrate, call_sizes, time_calls
from specdec.timing.machine import measure_machine
from specdec.timing.timer import Timer
from specdec.tracking import writer as tracking
from specdec.tracking.writer import TrackedRun

logger = logging.getLogger(__name__)

CALIBRATION = "calibration.json"
SESSION = "session.json"
_SECONDS_BEFORE = 10.0  # that comparisons with plain passes may take before anything is timed; others come at the end
_TRACED_ROUNDS = 25  # of each generation in the terminal; trace.html has them all


def run_experiment(config: RunConfig, folder: Path, earlier: EarlierRuns | None = None) -> RunFindings | KeptRun:
    """Measure one configuration, log it, and return what was found.

    Args:
        folder: of the results, unless an earlier run of the same identity goes on in its own (`resumption`).
        earlier: runs elsewhere that may go on, or be kept.
    Raises:
        SpecdecError: see `specdec.errors`; what was decoded before is on disk.
    """
    budget = TimeBudget(budget_of(config))
    config = settled(config)
    if not verbose():
        tell(opening_line(config, budget.seconds, brief=True))
    detail(opening_line(config, budget.seconds))
    with stage("Load", _loaded(config), bar=False):  # the hub draws the bars of its downloads
        parts = open_parts(config)
    check_workers(config, parts)
    stated, config = config, limited(config, parts.target)
    check_space(folder, parts, config.measurement)
    predicted = predicted_speedups(config, parts)
    with divided_threads(config, parts):
        identity = identify(stated, parts)
    with divided_threads(config, parts), begun(config.resume, folder, identity, earlier) as beginning:
        if isinstance(beginning, KeptRun):
            print_lines(get_console(), f"Kept: {beginning.metrics.folder} holds this measurement, finished.")
            return beginning
        facts = run_facts(parts, config.measurement.limit, predicted)
        facts = replace(
            facts, notes=(*facts.notes, *claim_notes(config), *workers_note(config, parts), *_sittings_note(beginning))
        )
        beginning.results.write_json(PLAN_FILE, facts.as_dict())
        if beginning.sentence:
            tell(beginning.sentence)
        for note in facts.notes:
            detail(note)
        budget.lap("opening")
        return _run(config, parts, identity, beginning, budget, facts.notes)


def _loaded(config: RunConfig) -> str:
    """Return the models that a run loads, in words."""
    names = [str(part["model"]) for part in (config.target, config.drafter) if part.get("model")]
    return " and ".join(dict.fromkeys([*names, *filter(None, [config.measurement.original])])) or "parts and prompts"


def _sittings_note(beginning: Beginning) -> list[str]:
    """Return what a reader of the results has to know of a run that was interrupted."""
    more = [counted(each["prompts_kept"], "prompt") for each in beginning.sittings[1:]]
    if not more:
        return []
    return [
        f"Decoded in {len(more) + 1} sittings: interrupted after {', '.join(more)}. Calibration and cost model "
        "are of the first one."
    ]


def _run(
    config: RunConfig,
    parts: Parts,
    identity: RunIdentity,
    beginning: Beginning,
    budget: TimeBudget,
    told: Sequence[str],
) -> RunFindings:
    """Decode what is left of a run, analyse it, and log it; `told` are the notes that were printed."""
    results, folder = beginning.results, beginning.results.folder
    name, read = run_name(config, parts, identity), identity.environment["prompts"]
    about: dict[str, Any] = {"name": name, "params": identity.params, "tags": identity.tags}
    prompts = prompts_of(config, parts)
    with tracking.tracked_run(config.tracking, **about, results=folder) as tracked:
        tracked.dataset(read["name"], read["sha256"], read["count"], read)
        try:
            with standing(results, prompts, len(beginning.kept), budget) as progress:
                write_sittings(results, identity, beginning, tracked.run_id)
                with ranks.together():
                    ranks.given((dict(beginning.kept), read_json(folder / CALIBRATION)))
                    _measure(config, parts, identity, beginning, partial(_alive, tracked.heartbeat, progress), budget)
                if config.measurement.record:
                    write_streams(folder / "streams.jsonl", read_streams(folder / "generations.jsonl"))
                del parts  # models and texts: the report is made of the files alone, and gets the memory
                left_out = len(budget.left_out)
                results.write_status("running", budget.cut(prompts), prompts - left_out, prompts, left_out)
                with stage("Analyse", "intervals, account, figures"):
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
        tracked.tags({"mlflow.note.content": run_note(found, tracked.overlay("curve/tokens_per_round"))})
    budget.lap("report")
    detail(budget.stages)
    if config.measurement.trace:
        print_trace(read_traces(folder / "traces.json"), get_console(), rounds=_TRACED_ROUNDS)
    show_run(found, get_console(), folder, run_links(tracked), told)
    return found


def follow_experiment(config: RunConfig, folder: Path) -> None:
    """Make the calls of rank 0 in the same order, on this rank's share of the target's weights; keep nothing.

    Args:
        folder: for what rank 0 keeps; the caller drops it.
    Raises:
        SpecdecError: see `run_experiment`; also where rank 0 ended.
    """
    config = settled(replace(config, tracking=replace(config.tracking, enabled=False)))
    parts = open_parts(config)
    with ranks.together():
        kept, calibration = ranks.given(None)
        results = ResultsFolder(folder)
        if calibration is not None:
            results.write_json(CALIBRATION, calibration)
        nobody = RunIdentity({}, {}, "", {})
        _measure(limited(config, parts.target), parts, nobody, Beginning(results, kept, ()), lambda: None)


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
    tracked.tags({"alpha_source": found.alpha_source, "specdec.partial": status.part})
    show_run(found, get_console(), folder, run_links(tracked))


def _alive(heartbeat: Callable[[], None], progress: Callable[[], None]) -> None:
    progress()
    heartbeat()
    raise_swallowed()


def _measure(
    config: RunConfig,
    parts: Parts,
    identity: RunIdentity,
    beginning: Beginning,
    heartbeat: Callable[[], None],
    budget: TimeBudget | None = None,
) -> None:
    """Warm up, calibrate, then decode every prompt by every method; everything goes to disk.

    A run that goes on keeps the calibration of its first sitting: one run has one point of reference, and its tables
    are those of a run that was never interrupted.
    """
    with opened(config.measurement.peers, _work(config, parts)) as others:
        _measure_beside(config, parts, identity, beginning, heartbeat, others, budget or TimeBudget(None))


def _measure_beside(
    config: RunConfig,
    parts: Parts,
    identity: RunIdentity,
    beginning: Beginning,
    heartbeat: Callable[[], None],
    others: OpenedPeers,
    budget: TimeBudget,
) -> None:
    measurement, target, results = config.measurement, parts.target, beginning.results
    clock = target.clock() or clock_for(target.device)
    kind = BatchedSession if measurement.batch_size > 1 else Session
    session = kind(config, parts, identity.cell, results, clock, others.peers)
    longest = max(parts.prompts.prompts, key=lambda prompt: len(prompt.tokens))
    grid_sizes = _grid_sizes(config, target)
    with stage("Compile", "the calls that are timed"):
        prepare(parts, longest, measurement, grid_sizes)
    longest_text = _longest_text(config, parts)
    doubt = target.disagreement(longest_text, _SECONDS_BEFORE)
    if doubt is not None:
        raise ModelLoadError(f"{doubt} Use shorter texts, or another model.")
    budget.lap("preparing")
    if measurement.warmup_tokens:
        with stage("Warm up", told=False):
            session.warm_up(longest, measurement.warmup_tokens)
    if others.peers:
        with stage("Choose peers' settings", ", ".join(each.name for each in others.peers)):
            _tune(others, longest, beginning)
    else:
        _tune(others, longest, beginning)
    budget.lap("warming up")
    known = read_json(results.folder / CALIBRATION) if beginning.kept else None
    if known is None:
        with stage("Calibrate", "single calls and drafts", told=False):
            known = _calibration(config, parts, session, longest, grid_sizes, clock)
        results.write_json(CALIBRATION, known)
    budget.lap("calibrating")
    ranks.expect_within(ranks.SILENCE_S)
    try:
        _decode_all(config, parts, session, beginning, heartbeat, budget)
    finally:
        _write_peers(others, results, session.peer_lines)
        session.finish(budget.left_out)
    results.compact()
    budget.lap("decoding")
    with stage("Compare with plain passes", "around the lengths of the model's configuration"):
        doubt = target.disagreement(longest_text)
    if doubt is not None:
        results.write_json(SESSION, {**(read_json(results.folder / SESSION) or {}), "doubt": doubt})
    budget.lap("comparing")
    if known["grid"] is not None:
        # Here, after the peak of memory was read: the buffers of these measurements are no part of the run.
        dtype = getattr(torch, identity.environment["model"]["dtype"])
        with stage("Measure the machine", "its memory and its arithmetic, for the cost of a call", told=False):
            machine = measure_machine(target.device, dtype).as_dict()
        results.write_json("cost.json", cost_report(known["grid"], target.products(), machine).as_dict())
        budget.lap("cost model")


def _calibration(
    config: RunConfig, parts: Parts, session: Session, longest: Prompt, grid_sizes: list[int], clock: Clock
) -> dict[str, Any]:
    """Return the content of `calibration.json`: single calls, a drafter's step, and the grid of the cost model."""
    measurement, target = config.measurement, parts.target
    timer = Timer(clock, measurement.calibration_calls, generator_for(config.seed, longest.id, "calibration"))
    trees = [arm.structure.tree for arm in parts.arms]
    calibration = session.calibrated(
        lambda target, drafter: calibrate(target, drafter, parts.primary.structure, longest.tokens, trees, timer)
    )
    grid = None
    if grid_sizes:
        generator = generator_for(config.seed, longest.id, "cost")
        timer = Timer(clock, measurement.cost_calls, generator, measurement.cost_seconds)
        grid = time_calls(target, longest.tokens, grid_sizes, measurement.cost_contexts, timer).as_dict()
    passes = {"target": dict(target.passes), "drafter": dict(parts.primary.drafter.passes)}
    return {**calibration.as_dict(), "grid": grid, "passes": passes}


def _tune(others: OpenedPeers, longest: Prompt, beginning: Beginning) -> None:
    """Warm the other engines up and choose their settings; a run that goes on keeps the settings it began with."""
    before = (read_json(beginning.results.folder / "peers.json") or {}).get("peers", []) if beginning.kept else []
    last = [set(), *({line["peer"] for line in done.collected["peers"]} for done in beginning.kept.values())][-1]
    others.tune(longest, before, last)
    _write_peers(others, beginning.results, ())


def _write_peers(others: OpenedPeers, results: ResultsFolder, generations: Sequence[Mapping[str, Any]]) -> None:
    described = others.describe(generations)
    if described is not None:
        results.write_json("peers.json", described)


def _longest_text(config: RunConfig, parts: Parts) -> int:
    """Return the most tokens that a text of the run may have, prompt and output together."""
    prompts, target = parts.prompts.prompts, parts.target
    if any(prompt.follow_ups for prompt in prompts):
        return target.context_length  # how long the later turns will be is not known yet
    longest = max(len(prompt.tokens) for prompt in prompts) + config.measurement.limit
    return min(longest, target.context_length)


def _work(config: RunConfig, parts: Parts) -> Work | None:
    """Return what other engines are set against, where the configuration asks for some."""
    target, limit = parts.target, config.measurement.limit
    if not config.measurement.peers:
        return None
    assert isinstance(target, Causal)  # checked before anything was loaded
    longest = _longest_text(config, parts)
    return Work(target, parts.primary.drafter, config.drafter, parts.primary.structure, limit, longest, config.seed)


def _grid_sizes(config: RunConfig, target: Target) -> list[int]:
    """Return the sizes of calls for the cost model, in tokens; none where there is no arithmetic to explain."""
    measurement = config.measurement
    if not (target.products() and measurement.cost_contexts) or measurement.batch_size > 1:
        return []  # the cost model explains calls on one sequence
    # Each size costs a captured target a graph: powers of two are enough there.
    captured = target.compilation == "inductor" and target.device.type == "cuda"
    return call_sizes(measurement.cost_rows, 1 if captured else measurement.cost_dense)


def prompts_of(config: RunConfig, parts: Parts) -> int:
    """Return the number of prompts that a run decodes: each counts once for each turn and repeat."""
    return sum(1 + len(prompt.follow_ups) for prompt in parts.prompts.prompts) * config.measurement.repeats


def _decode_all(
    config: RunConfig,
    parts: Parts,
    session: Session,
    beginning: Beginning,
    heartbeat: Callable[[], None],
    budget: TimeBudget,
) -> None:
    """Decode every prompt with its later turns, as often as the configuration says, except for those that are kept and
    those that there is no time for.
    """
    total, methods = prompts_of(config, parts), len(parts.plain) + len(parts.speculative)
    tell(f"Decode: {counted(total, 'prompt')}, each by {counted(methods, 'method')} in turn ...")
    with progress_bar() as progress:
        bar = progress.add_task("decoding", total=total)

        def advance(decoded: bool) -> None:
            progress.advance(bar)
            if decoded:
                heartbeat()

        if workers_of(config, parts) > 1:
            decode_by_workers(config, parts, session, beginning, advance)
            return
        answers: Answers = {}
        prompts, size = parts.prompts.prompts, session.group
        order = conversations(prompts, config.measurement.repeats, config.seed if budget.bound else None)
        for done, conversation in enumerate(order, 1):
            repeat, number = conversation.repeat, conversation.number
            if number % size == 0 and size > 1:  # then no prompt is left out, and they are in their own order
                group = prompts[number : number + size]
                session.decode_ahead([each for each in group if (repeat, each.id) not in beginning.kept], repeat)
            kept = (repeat, conversation.prompt.id) in beginning.kept
            with budget.decoding(conversation.turns, kept) as there_is_time:
                if there_is_time:
                    decode_conversation(parts, session, conversation, beginning.kept, answers, advance)
            if there_is_time and not kept:
                for expected in filter(None, [budget.expectation(len(order) - done)]):
                    detail(expected)
