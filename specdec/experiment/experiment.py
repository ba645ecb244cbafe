"""One run from a typed configuration: build, calibrate, decode, analyse, log."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich import get_console

from specdec.analysis.cost.cost_report import cost_report
from specdec.analysis.pages.run_page import write_run
from specdec.analysis.pages.trace import read_traces
from specdec.analysis.runs.run_findings import RunFindings
from specdec.clock import clock_for
from specdec.config import RunConfig
from specdec.errors import SpecdecError
from specdec.experiment.advice import find_advice
from specdec.experiment.beside import settled
from specdec.experiment.disk_space import check_space
from specdec.experiment.identity import RunIdentity, identify, run_facts
from specdec.experiment.parts import Parts, limited, open_parts, prepare
from specdec.experiment.peers import TransformersPeer, transformers_peers
from specdec.experiment.results import ResultsFolder
from specdec.experiment.session import Session
from specdec.experiment.terminal import print_lines, print_trace, show_run
from specdec.progress import progress_bar
from specdec.prompts import Prompt
from specdec.sampling import generator_for
from specdec.targets import Target
from specdec.targets.causal import Causal
from specdec.text.streams import read_streams, write_streams
from specdec.timing.calls import calibrate, call_sizes, time_calls
from specdec.timing.machine import measure_machine
from specdec.timing.timer import Timer
from specdec.tracking import writer as tracking

_TRACED_ROUNDS = 25  # of each generation in the terminal; trace.html has them all


def run_experiment(config: RunConfig, folder: Path) -> RunFindings:
    """Measure one configuration, log it, and return what was found.

    Raises:
        SpecdecError: see `specdec.errors`; what was decoded before is on disk.
    """
    config = settled(config)
    parts = open_parts(config)
    stated, config = config, limited(config, parts.target)
    check_space(folder, parts, config.measurement)
    advice = find_advice(config, parts)
    results = ResultsFolder(folder)
    identity = identify(stated, parts, results)
    facts = run_facts(parts, config.measurement.limit, advice)
    results.write_json("run.json", facts.as_dict())
    print_lines(get_console(), *facts.notes)
    name = f"{parts.label} {parts.primary.structure.label}"
    if parts.beside:
        name += f" beside {', '.join(each.name for each in parts.beside)}"
    with tracking.tracked_run(config.tracking, name=name, params=identity.params, tags=identity.tags) as tracked:
        try:
            _measure(config, parts, identity, results, tracked.heartbeat)
        except SpecdecError:
            results.compact()  # what was decoded so far stays, in one piece
            tracked.artifacts(folder)
            raise
        if config.measurement.record:
            write_streams(folder / "streams.jsonl", read_streams(folder / "generations.jsonl"))
        del parts  # models and texts: the report is made of the files alone, and gets the memory
        found = write_run(folder)
        tracked.metrics(found.metrics)
        tracked.curves(found.curves)
        tracked.tags({"alpha_source": found.alpha_source})
        for key, lines in found.overlays().items():
            tracked.curve_children(key, lines)
        tracked.artifacts(folder)
        links = {"browse": tracked.link, "overlay": tracked.overlay("curve.tokens_per_round")}
    if config.measurement.trace:
        print_trace(read_traces(folder / "traces.json"), get_console(), rounds=_TRACED_ROUNDS)
    show_run(found, get_console(), folder, links)
    return found


def _measure(
    config: RunConfig, parts: Parts, identity: RunIdentity, results: ResultsFolder, heartbeat: Callable[[], None]
) -> None:
    """Warm up, calibrate, then decode every prompt by every method; everything goes to disk."""
    measurement, target = config.measurement, parts.target
    clock = target.clock() or clock_for(target.device)
    peers = _peers(config, parts)
    session = Session(config, parts, identity.cell, results, clock, peers)
    longest = max(parts.prompts.prompts, key=lambda prompt: len(prompt.tokens))
    grid_sizes = _grid_sizes(config, target)
    prepare(parts, longest, measurement, grid_sizes)
    if measurement.warmup_tokens:
        session.warm_up(longest, measurement.warmup_tokens)
    for peer in peers:
        peer.tune(longest)
    calibration = calibrate(
        target,
        parts.primary.drafter,
        parts.primary.structure,
        longest.tokens,
        [arm.structure.tree for arm in parts.arms],
        Timer(clock, measurement.calibration_calls, generator_for(config.seed, longest.id, "calibration")),
    )
    grid = None
    if grid_sizes:
        generator = generator_for(config.seed, longest.id, "cost")
        timer = Timer(clock, measurement.cost_calls, generator, measurement.cost_seconds)
        grid = time_calls(target, longest.tokens, grid_sizes, measurement.cost_contexts, timer).as_dict()
    results.write_json("calibration.json", {**calibration.as_dict(), "grid": grid})
    try:
        _decode_all(config, parts, session, heartbeat)
    finally:
        if peers:
            described = {"peers": [peer.describe() for peer in peers], "generations": session.peer_lines}
            results.write_json("peers.json", described)
    session.finish()
    results.compact()
    if grid is not None:
        # Here, after the peak of memory was read: the buffers of these measurements are no part of the run.
        dtype = getattr(torch, identity.environment["model"]["dtype"])
        machine = measure_machine(target.device, dtype).as_dict()
        results.write_json("cost.json", cost_report(grid, target.products(), machine).as_dict())


def _peers(config: RunConfig, parts: Parts) -> list[TransformersPeer]:
    """Make the other engines that the configuration asks for."""
    target = parts.target
    if "transformers" not in config.measurement.peers:
        return []
    assert isinstance(target, Causal)  # checked before anything was loaded
    return transformers_peers(
        config.drafter,
        parts.primary.drafter,
        target,
        parts.primary.structure,
        config.measurement.limit,
        target.compilation,
    )


def _grid_sizes(config: RunConfig, target: Target) -> list[int]:
    """Return the sizes of calls for the cost model, in tokens; none where there is no arithmetic to explain."""
    measurement = config.measurement
    if not (target.products() and measurement.cost_contexts):
        return []
    # Each size costs a compiled target a compilation: powers of two are enough there.
    return call_sizes(measurement.cost_rows, 1 if target.compilation == "inductor" else measurement.cost_dense)


def _decode_all(config: RunConfig, parts: Parts, session: Session, heartbeat: Callable[[], None]) -> None:
    """Decode every prompt with its later turns, as often as the configuration says."""
    prompts, measurement = list(parts.prompts.prompts), config.measurement
    with progress_bar() as progress:
        turns = sum(1 + len(prompt.follow_ups) for prompt in prompts)
        bar = progress.add_task("decoding", total=turns * measurement.repeats)
        answers: dict[str, Any] = {}
        for repeat in range(measurement.repeats):
            for prompt in prompts:
                current: Prompt | None = prompt
                while current is not None:
                    baseline = session.run_prompt(current, repeat)
                    progress.advance(bar)
                    heartbeat()
                    # A later turn continues the baseline's first answer, for every method and repeat alike.
                    answer = answers.setdefault(current.id, baseline.tokens)
                    current = parts.prompts.follow_up(current, answer)
