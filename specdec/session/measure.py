"""What a run does with its opened parts: warm up, calibrate, decode every prompt by every method; all goes to disk."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from specdec import ranks
from specdec.analysis.cost.cost_report import CostReport
from specdec.analysis.sections import counted
from specdec.clock import clock_for
from specdec.disturbance import watch_of
from specdec.errors import ModelLoadError
from specdec.folder.results import ResultsFolder
from specdec.folder.resumption import Beginning
from specdec.peers import OpenedPeers, Work, opened
from specdec.plan.time_budget import TimeBudget
from specdec.progress import detail, stage
from specdec.sampling import generator_for
from specdec.session.batched_session import BatchedSession
from specdec.session.parts import SAMPLED_EVERY, Parts, prepare
from specdec.session.session import Answers, Session, conversations
from specdec.session.workers import decode_by_workers
from specdec.targets.causal import Causal
from specdec.theory.capped_geometric import speedup
from specdec.timing.calls import calibrate, call_sizes, time_calls
from specdec.timing.machine import measure_machine
from specdec.timing.threads import settle_threads
from specdec.timing.timer import Timer

CALIBRATION = "calibration.json"
SESSION = "session.json"
_ALPHA = 0.6  # of drafts before any is seen, for what is said of the time
_SECONDS_BEFORE = 10.0  # that comparisons with plain passes may take before anything is timed; others come at the end


def measure(parts: Parts, cell: str, beginning: Beginning, heartbeat: Callable[[], None], budget: TimeBudget) -> None:
    """Measure what is left of a run, whose identity is `cell`; `heartbeat` is called after each prompt.

    A run that goes on keeps the calibration of its first sitting: one run has one point of reference, and its tables
    are those of a run that was never interrupted.
    """
    measurement, target, results = parts.plan.measurement, parts.target, beginning.results
    longest = parts.longest_prompt
    known = results.read_json(CALIBRATION) if beginning.kept else {}
    fixed = measurement.threads is not None
    threads = known.get("threads") or settle_threads(target, longest.tokens, watch_of(target.device), fixed)
    torch.set_num_threads(threads["threads"])
    longest_text = min(len(longest.tokens) + parts.limit, target.context_length)
    if any(prompt.follow_ups for prompt in parts.prompts.prompts):
        longest_text = target.context_length  # how long the later turns will be is not known yet
    work = None
    if measurement.peers:
        assert isinstance(target, Causal)  # checked before anything was loaded
        values = parts.chosen.planned.values.drafter
        structure = parts.primary.structure
        work = Work(target, parts.primary.drafter, values, structure, parts.limit, longest_text, parts.plan.seed)
    with opened(measurement.peers, work) as others:
        clock = target.clock() or clock_for(target.device)
        kind = BatchedSession if measurement.batch_size > 1 else Session
        session = kind(parts, cell, results, clock, others.peers)
        grid_sizes: list[int] = []  # of the calls for the cost model; none where there is no arithmetic to explain
        if target.products() and measurement.cost_contexts and measurement.batch_size == 1:
            # Each size costs a captured target a graph: powers of two are enough there.
            captured = target.compilation == "inductor" and target.device.type == "cuda"
            grid_sizes = call_sizes(measurement.cost_rows, 1 if captured else measurement.cost_dense)
        prepare(parts, grid_sizes=grid_sizes)
        with stage("Compare with plain passes", "around short lengths", told=False):
            doubt = target.disagreement(longest_text, _SECONDS_BEFORE, measurement.batch_size > 1)
        if doubt is not None:
            raise ModelLoadError(f"{doubt} Use shorter texts, or another model.")
        budget.lap("preparing")
        if measurement.warmup_tokens:
            shorter = "measurement.gammas=[N] or measurement.warmup_tokens=0 make it shorter"
            methods = len(parts.arms) + (parts.sampled is not None)
            with stage("Warm up", total=methods, told=False, shorter=shorter) as under_way:
                session.warm_up(longest, measurement.warmup_tokens, under_way.advance)
        if others.peers:
            with stage("Choose peers' settings", ", ".join(peer.name for peer in others.peers)):
                before = results.read_json("peers.json").get("peers", []) if beginning.kept else []
                last = [{line["peer"] for line in done.collected["peers"]} for done in beginning.kept.values()]
                others.tune(longest, before, last[-1] if last else set())
        _write_peers(others, results, ())
        budget.lap("warming up")
        if measurement.quiet == "require":
            clock.watch.await_quiet()
        if not known:
            known = {**_calibration(session, grid_sizes), "threads": threads}
            results.write_json(CALIBRATION, known)
        budget.lap("calibrating")
        ranks.expect_within(ranks.SILENCE_S)
        try:
            _decode_all(session, beginning, heartbeat, budget, known)
        finally:
            _write_peers(others, results, session.collected.peers)
            session.finish(budget.left_out)
        results.compact()
        budget.lap("decoding")
        with stage("Compare with plain passes", "around the lengths of the model's configuration", told=False):
            doubt = target.disagreement(longest_text, batched=measurement.batch_size > 1)
        if doubt is not None:
            results.write_json(SESSION, {**results.read_json(SESSION), "doubt": doubt})
        budget.lap("comparing")
        if known["grid"] is not None:
            # Here, after the peak of memory was read: the buffers of these measurements are no part of the run.
            dtype = getattr(torch, target.describe()["dtype"])
            with stage("Measure the machine", "its memory and its arithmetic, for the cost of a call", told=False):
                machine = measure_machine(target.device, dtype)
            results.write_json("cost.json", CostReport(known["grid"], target.products(), machine).as_dict())
            budget.lap("cost model")


def _write_peers(others: OpenedPeers, results: ResultsFolder, generations: Sequence[Mapping[str, Any]]) -> None:
    described = others.describe(generations)
    if described is not None:
        results.write_json("peers.json", described)


def _calibration(session: Session, grid_sizes: list[int]) -> dict[str, Any]:
    """Return the content of `calibration.json`: single calls, a drafter's step, and the grid of the cost model."""
    parts, clock = session.parts, session.clock
    measurement, target, seed, longest = parts.plan.measurement, parts.target, parts.plan.seed, parts.longest_prompt
    timer = Timer(clock, measurement.calibration_calls, generator_for(seed, longest.id, "calibration"))
    trees = [arm.structure.tree for arm in parts.chosen.arms]
    calibration = session.calibrated(
        lambda target, drafter: calibrate(target, drafter, parts.primary.structure, longest.tokens, trees, timer)
    )
    grid, disturbed = None, timer.disturbed
    if grid_sizes:
        generator = generator_for(seed, longest.id, "cost")
        timer = Timer(clock, measurement.cost_calls, generator, measurement.cost_seconds)
        grid = time_calls(target, longest.tokens, grid_sizes, measurement.cost_contexts, timer)
        disturbed += timer.disturbed
    passes = {"target": dict(target.passes), "drafter": dict(parts.primary.drafter.passes)}
    return {**calibration.as_dict(), "grid": grid, "passes": passes, "disturbed": disturbed}


def _decoding_seconds(parts: Parts, known: Mapping[str, Any]) -> float:
    """Return about how long one prompt takes by all methods, if `_ALPHA` of the draft tokens are right."""
    t1_s, times = known["t1_s"], {int(size): timed["median_s"] for size, timed in known["t_n"].items()}
    sizes = sorted(times)
    again = 0.0 if parts.null is None else 1 - 1 / parts.control_every
    calls = len(parts.plain) - again  # for each token, in calls on one
    for arm in parts.speculative:
        wide = np.interp(arm.structure.nodes + 1, sizes, [times[size] for size in sizes]) / t1_s
        each = 1 / float(speedup(_ALPHA, arm.gamma, known["draft_step_s"] / t1_s, float(wide)))
        # A line at a temperature is decoded plainly and by the primary arm.
        calls += each + (arm is parts.primary and parts.sampled is not None) * (1 + each) / SAMPLED_EVERY
    prefills = 0.0
    if known["grid"] is not None and known["grid"]["cells"]:  # at the pace of the widest call that was timed
        widest = max(known["grid"]["cells"], key=lambda cell: int(cell["rows"]))
        tokens = float(np.mean([len(prompt.tokens) for prompt in parts.prompts.prompts]))
        prefills = (len(parts.arms) - again) * tokens * float(np.median(widest["seconds"])) / widest["rows"]
    return calls * t1_s * parts.limit + prefills


def _decode_all(
    session: Session, beginning: Beginning, heartbeat: Callable[[], None], budget: TimeBudget, known: Mapping[str, Any]
) -> None:
    """Decode every prompt with its later turns, as often as the configuration says, except for those that are kept and
    those that there is no time for; `known` is the content of `calibration.json`.
    """
    parts = session.parts
    expected, shorter = None, ""
    if session.group == 1 and parts.target.clock() is None:
        expected = _decoding_seconds(parts, known) * (parts.turns - len(beginning.kept)) / parts.workers
    if budget.seconds is not None:
        expected = min(expected or budget.seconds, max(1.0, budget.seconds - budget.gone))
    else:
        shorter = "prompts.limit=N, measurement.gammas=[N] or measurement.budget_seconds=N make it shorter"
    about = f"{counted(parts.turns, 'prompt')}, each by {counted(len(parts.arms), 'method')} in turn"
    with stage("Decode", about, parts.turns, expected=expected, shorter=shorter) as under_way:
        under_way.go_on_from(len(beginning.kept))
        waiting = 0  # of a group that is decoded at once, and whose first prompt takes the time of all

        def advance(decoded: bool) -> None:
            nonlocal waiting
            waiting += decoded
            if waiting == session.group:
                under_way.advance(waiting)
                waiting = 0
            if decoded:
                heartbeat()

        if parts.workers > 1:
            decode_by_workers(session, beginning, advance)
            return
        answers: Answers = {}
        prompts, size = parts.prompts.prompts, session.group
        seed = None if budget.seconds is None else parts.plan.seed  # then all are decoded, in their own order
        order = conversations(prompts, parts.plan.measurement.repeats, seed)
        for done, conversation in enumerate(order, 1):
            repeat, number = conversation.repeat, conversation.number
            if number % size == 0 and size > 1:  # then no prompt is left out, and they are in their own order
                group = prompts[number : number + size]
                unfinished = [prompt for prompt in group if (repeat, prompt.id) not in beginning.kept]
                session.decode_ahead(unfinished, repeat, conversation.place)
            kept = (repeat, conversation.prompt.id) in beginning.kept
            with budget.decoding(conversation.turns, kept) as there_is_time:
                if there_is_time:
                    if parts.plan.measurement.quiet == "require" and not kept:
                        session.clock.watch.await_quiet(0.1)  # a short look, for each prompt
                    session.decode_conversation(conversation, beginning.kept, answers, advance)
            if there_is_time and not kept:
                left = len(order) - done
                under_way.total = under_way.done + (parts.turns - under_way.done) * budget.fitting(left) // max(left, 1)
                if expectation := budget.expectation(left):
                    detail(expectation)
