"""One experiment from a typed config: build, calibrate, decode, analyse, log. The only place that knows every part."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from rich import get_console

from specdec import __version__
from specdec.clock import Clock, clock_for
from specdec.config import BASELINE, ORIGINAL, MeasurementConfig, RunConfig, flattened, validated
from specdec.drafters import Drafter, drafters
from specdec.drafters.none import NoDrafter
from specdec.errors import SpecdecError, UsageError
from specdec.experiment.advice import find_advice
from specdec.experiment.environment import capture
from specdec.experiment.peers import TransformersPeer, transformers_peers
from specdec.experiment.results import ResultsFolder
from specdec.experiment.run_report import Report, build_report
from specdec.experiment.session import Arm, Session
from specdec.progress import progress_bar
from specdec.prompts import Prompt, PromptSet, load_prompts
from specdec.sampling import SamplingConfig, generator_for
from specdec.structures import Structure, structures
from specdec.targets import Target, targets
from specdec.targets.causal import Causal
from specdec.text.streams import read_streams, write_streams
from specdec.timing.calls import Calibration, calibrate, row_counts, time_calls
from specdec.timing.simulated import priced
from specdec.tracking import writer as tracking
from specdec.verifiers import Verifier, verifiers


@dataclass(frozen=True)
class Parts:
    """Everything a session needs, built and found compatible."""

    target: Target
    drafter: Drafter  # as configured; where time is simulated, that of the arms also moves the clock
    baseline: Arm
    arms: tuple[Arm, ...]
    primary: Arm
    prompts: PromptSet
    forced: bool
    label: str  # drafter on model, for titles
    original: Target | None = None  # the model that the target was before it was trained: a second baseline, and judge
    left_out: tuple[int, ...] = ()  # of measurement.gammas: deeper than the drafter drafts

    @property
    def judge(self) -> Target | None:
        """The model under whose law outputs are judged: none where they are the target's own by the rules."""
        return self.original or (None if self.primary.verifier.capabilities.lossless or self.forced else self.target)


def build(config: RunConfig) -> Parts:
    """Validate every component's own config, then construct it.

    Raises:
        UsageError: the first thing that is wrong, before any weight is read where that is possible.
    """
    sampling = validated(SamplingConfig, config.sampling, where="sampling")
    target_config = targets.config(config.target)
    drafter_config = drafters.config(config.drafter)
    structure = structures.build(config.structure)
    verifier = verifiers.build(config.verifier)
    _check_compatible(config, sampling, structure, verifier)
    if sampling.greedy:
        verifier = verifier.for_greedy()
    target = targets.construct(target_config, sampling=sampling)
    prompts = load_prompts(
        config.prompts,
        tokenizer=target.tokenizer,
        context_length=target.context_length,
        max_new_tokens=config.measurement.max_new_tokens,
        vocab_size=target.vocab_size,
    )
    original = _open_original(config, target)
    # One drafter serves every gamma: arms never decode at the same time.
    drafter = drafters.construct(drafter_config, target=target)
    can = drafter.capabilities
    if can.vocab_size not in (None, target.vocab_size):
        raise UsageError(
            f"Bad value drafter={config.drafter['name']}: it was made for a vocabulary of {can.vocab_size} tokens, "
            f"the target has {target.vocab_size}; use a drafter with the target's own tokenizer."
        )
    deepest = can.deepest or max(structure.gamma, *config.measurement.gammas, 0)
    if structure.gamma > deepest:
        raise UsageError(
            f"Bad value structure={config.structure['name']}: it is {structure.gamma} deep, and drafter "
            f"{config.drafter['name']} drafts {deepest} levels at most; lower the structure's depth."
        )
    gammas = sorted({*config.measurement.gammas, structure.gamma})
    arms = {
        gamma: Arm(
            config.drafter["name"],
            gamma,
            priced(drafter, target),
            structure if gamma == structure.gamma else structure.resized(gamma),
            verifier,
        )
        for gamma in gammas
        if gamma <= deepest
    }
    baseline = Arm(BASELINE, 0, NoDrafter(), structure.resized(0), verifier)
    return Parts(
        target=target,
        drafter=drafter,
        baseline=baseline,
        arms=tuple(arms.values()),
        primary=arms[structure.gamma],
        prompts=prompts,
        forced=bool(config.drafter.get("forced", False)),
        label=("" if drafter_config.name == "none" else f"{drafter_config.name} on ")
        + str(config.target.get("model", config.target["name"])),
        original=original,
        left_out=tuple(gamma for gamma in gammas if gamma > deepest),
    )


def _open_original(config: RunConfig, target: Target) -> Causal | None:
    """The model of `measurement.original`, loaded and run exactly as the target is; None where none is named.

    Raises:
        UsageError: it does not read and write the target's tokens, or holds fewer of them.
    """
    name = config.measurement.original
    if name is None:
        return None
    assert isinstance(target, Causal)  # checked before anything was loaded
    dtype = str(target.model.dtype).removeprefix("torch.")  # a checkpoint's own may be another
    original = targets.build({**config.target, "model": name, "shape": None, "dtype": dtype}, sampling=target.sampling)
    assert isinstance(original, Causal)
    known = None not in (original.tokenizer, target.tokenizer)
    for differs, what in (
        (original.vocab_size != target.vocab_size, f"has {original.vocab_size} tokens, the target {target.vocab_size}"),
        (known and original.tokenizer.get_vocab() != target.tokenizer.get_vocab(), "has another tokenizer"),
        (
            original.context_length < target.context_length,
            f"holds {original.context_length} tokens of context, the target {target.context_length}",
        ),
    ):
        if differs:
            raise UsageError(
                f"Bad value measurement.original={name}: it {what}; give the model that the target was trained from."
            )
    return original


def _check_compatible(config: RunConfig, sampling: SamplingConfig, structure: Structure, verifier: Verifier) -> None:
    drafter = drafters.get(config.drafter["name"]).capabilities
    target = targets.get(config.target["name"]).capabilities
    rule = verifier.capabilities
    shape = config.structure["name"]
    for fits, who, what in (
        (drafter.fills, f"drafter {config.drafter['name']!r}", "fills"),
        (rule.handles, f"verifier {config.verifier['name']!r}", "handles"),
        (target.structures, f"target {config.target['name']!r}", "evaluates"),
    ):
        if shape not in fits:
            raise UsageError(f"Bad value structure={shape}: {who} {what} only {', '.join(sorted(fits))}.")
    if config.measurement.lossless:
        _check_lossless(config, verifier)
    if target.recorded and not verifier.for_greedy().capabilities.lossless:
        raise UsageError(
            f"Bad value verifier={config.verifier['name']}: target {config.target['name']!r} knows "
            "recorded tokens only, and this rule commits others; use verifier=speculative_sampling."
        )
    if rule.greedy_only and not sampling.greedy:
        raise UsageError(
            f"Bad value sampling.temperature={sampling.temperature}: verifier {config.verifier['name']!r} is right "
            "only at 0; use verifier=speculative_sampling."
        )
    if drafter.needs_reference and not sampling.greedy:
        raise UsageError(
            f"Bad value sampling.temperature={sampling.temperature}: drafter {config.drafter['name']!r} reads the "
            "recorded greedy text; use sampling=greedy."
        )
    if config.measurement.peers and config.target["name"] != "causal":
        raise UsageError("Bad value measurement.peers: peers need target=causal; use measurement.peers=[].")
    if config.measurement.original is not None and config.target["name"] != "causal":
        raise UsageError(
            f"Bad value measurement.original={config.measurement.original}: a second baseline needs target=causal; use "
            "measurement.original=null."
        )


def _check_lossless(config: RunConfig, verifier: Verifier) -> None:
    """Whether all parts claim to leave the target's law as it is; a temperature at which they happen to is no claim."""
    for claims, key, instead in (
        (verifier.capabilities.lossless, f"verifier={config.verifier['name']}", "verifier=speculative_sampling"),
        (
            drafters.get(config.drafter["name"]).capabilities.lossless,
            f"drafter={config.drafter['name']}",
            "another drafter",
        ),
        (not config.drafter.get("forced", False), "drafter.forced=true", "drafter.forced=false"),
    ):
        if not claims:
            raise UsageError(
                f"Bad value {key}: it does not claim to be lossless as configured, and measurement.lossless=true asks "
                f"for that; use {instead}, or measurement.lossless=false."
            )


@dataclass(frozen=True)
class Identity:
    """What a run records about itself before it begins.

    Attributes:
        params: the resolved configuration, flat.
        environment: versions, hardware, weights, prompts (`environment.json`).
        cell: what makes two runs the same measurement.
        tags: of the MLflow run.
    """

    params: dict[str, Any]
    environment: dict[str, Any]
    cell: str
    tags: dict[str, str]


def identify(config: RunConfig, parts: Parts, results: ResultsFolder) -> Identity:
    """Write `config.yaml` and `environment.json`."""
    plain = asdict(config)
    (results.folder / "config.yaml").write_text(yaml.safe_dump(plain, sort_keys=False), encoding="utf-8")
    model, drafter = parts.target.describe(), parts.primary.drafter.describe()
    environment = {
        **capture(parts.target.device),
        "model": model,
        "drafter": drafter,
        **({} if parts.original is None else {"original": parts.original.describe()}),
        "prompts": {
            "name": parts.prompts.name,
            "sha256": parts.prompts.content_hash,
            "count": len(parts.prompts.prompts),
            "skipped": {reason: dict(counts) for reason, counts in parts.prompts.skipped.items()},
            **parts.prompts.provenance,
        },
        "seed": config.seed,
    }
    results.write_json("environment.json", environment)
    cell = _cell(plain, model, drafter, environment.get("original", {}), parts.prompts.content_hash)
    tags = {
        "specdec.cell": cell,
        "specdec.version": __version__,
        "drafter": config.drafter["name"],
        "model": str(config.target.get("model", config.target["name"])),
        "dtype": str(model.get("dtype", "float64")),
        "time": "measured" if parts.target.clock() is None else "simulated",
    }
    return Identity(flattened(plain), environment, cell, tags)


def run_experiment(config: RunConfig, folder: Path) -> Report:
    """Measure one cell and log it; returns what was reported.

    Raises:
        SpecdecError: see `specdec.errors`; what was decoded before is on disk.
    """
    parts = open_parts(config)
    advice = find_advice(config, parts)
    results = ResultsFolder(folder)
    identity = identify(config, parts, results)
    name = f"{parts.label} {parts.primary.structure.label}"
    with tracking.tracked_run(config.tracking, name=name, params=identity.params, tags=identity.tags) as tracked:
        try:
            outcome, calibration, peer_rows, peer_notes = _measure(
                config, parts, identity.cell, results, tracked.heartbeat
            )
        except SpecdecError:
            results.compact()  # what was decoded so far stays, in one piece
            tracked.artifacts(folder)
            raise
        if config.measurement.record:
            write_streams(folder / "streams.jsonl", read_streams(folder / "generations.jsonl"))
        report = build_report(
            results=results,
            outcome=outcome,
            calibration=calibration,
            peer_rows=peer_rows,
            peer_notes=peer_notes,
            parts=parts,
            advice=advice,
            environment=identity.environment,
            replicates=config.measurement.bootstrap,
            seed=config.seed,
            print_traces=config.measurement.trace,
        )
        tracked.metrics(report.metrics)
        tracked.curves(report.curves)
        tracked.tags({"alpha_source": report.alpha_source})
        for key in ("curve.tokens_per_round", "curve.speedup"):
            tracked.curve_children(key, report.lines(key))
        tracked.artifacts(folder)
        links = {"browse": tracked.link, "overlay": tracked.overlay("curve.tokens_per_round")}
    report.show(get_console(), folder, links)
    return report


def open_parts(config: RunConfig) -> Parts:
    """Everything that can be wrong before decoding, checked: the store, then every part.

    Raises:
        UsageError: the first thing that is wrong.
    """
    tracking.check_store(config.tracking, Path.cwd())
    if config.measurement.threads is not None:
        torch.set_num_threads(config.measurement.threads)
    return build(config)


def _measure(
    config: RunConfig, parts: Parts, cell: str, results: ResultsFolder, heartbeat: Callable[[], None]
) -> tuple[Any, Calibration, list[dict[str, Any]], list[str]]:
    """Warm up, calibrate, then every prompt by every method."""
    measurement, target = config.measurement, parts.target
    clock = target.clock() or clock_for(target.device)
    peers: list[TransformersPeer] = []
    if "transformers" in measurement.peers:
        assert isinstance(target, Causal)
        peers = transformers_peers(
            config.drafter,
            parts.primary.drafter,
            target,
            parts.primary.structure,
            measurement.max_new_tokens,
            baseline=BASELINE,
            mode=target.compilation,
        )
    session = Session(
        cell=cell,
        target=target,
        baseline=parts.baseline,
        arms=parts.arms,
        clock=clock,
        results=results,
        seed=config.seed,
        max_new_tokens=measurement.max_new_tokens,
        repetition=(measurement.repetition_period, measurement.repetition_share),
        forced=parts.forced,
        trace=(parts.primary.gamma, measurement.traced),
        peers=peers,
        judge=parts.judge,
        original=None if parts.original is None else replace(parts.baseline, method=ORIGINAL, target=parts.original),
    )
    prompts = list(parts.prompts.prompts)
    longest = max(prompts, key=lambda prompt: len(prompt.tokens))
    grid_rows = _grid_rows(config, target)
    prepare(parts, longest, measurement, grid_rows)
    if measurement.warmup_tokens:
        session.warm_up(longest, measurement.warmup_tokens)
    for peer in peers:
        peer.tune(longest)
    calibration = calibrate(
        target,
        parts.primary.drafter,
        parts.primary.structure,
        longest.tokens,
        trees=[arm.structure.tree for arm in parts.arms],
        repeats=measurement.calibration_calls,
        clock=clock,
        generator=generator_for(config.seed, longest.id, "calibration"),
    )
    grid = _time_grid(config, target, longest, grid_rows, clock)
    results.write_json("calibration.json", {**calibration.as_dict(), "grid": grid})
    try:
        _decode_all(config, parts, session, heartbeat)
    finally:
        if peers:
            described = {"peers": [peer.describe() for peer in peers], "generations": session.peer_rows}
            results.write_json("peers.json", described)
    peer_notes = [note for note in (peer.note() for peer in peers) if note is not None]
    structure = parts.primary.structure
    if peers and not structure.single:
        peer_notes.append(
            f"transformers drafts chains only: structure={structure.name} has no peer but plain generate."
        )
    return session.outcome, calibration, session.peer_rows, peer_notes


def prepare(parts: Parts, longest: Prompt, measurement: MeasurementConfig, grid_rows: Sequence[int] = ()) -> None:
    """Have target and drafter compile, where they do, for all that is to be timed.

    Raises:
        UsageError: no memory for the key-value cache, or for a call on a full draft.
    """
    target, primary = parts.target, parts.primary.structure
    for arm in parts.arms:
        target.check_draft(arm.structure)
    length = len(longest.tokens) + measurement.max_new_tokens
    if any(prompt.follow_ups for prompt in parts.prompts.prompts):
        length = target.context_length  # how long the later turns will be is not known yet
    capacity = length + max(target.room(arm.structure.tree) for arm in parts.arms)
    branches = max(arm.structure.branches for arm in parts.arms)
    target.check_memory(len(longest.tokens), capacity, branches)
    if parts.original is not None:
        plain = length + parts.original.room(parts.baseline.structure.tree)
        parts.original.check_memory(len(longest.tokens), plain)
        parts.original.prepare({1}, plain)
    rows = {1}
    # A pass made for one number of rows serves neither batches nor drafts whose nodes are merged.
    if primary.branches == 1 or (target.evaluation == "packed" and (primary.fixed or target.compilation == "trace")):
        rows.add(primary.nodes + 1)
    if target.compilation == "inductor":
        rows |= set(grid_rows)
    deepest = max(measurement.cost_contexts) + max(grid_rows) + 1 if grid_rows else 0
    target.prepare(rows, max(capacity, min(deepest, target.context_length)), branches)
    parts.primary.drafter.prepare(length + max(arm.structure.nodes for arm in parts.arms) + 1, primary)


def _grid_rows(config: RunConfig, target: Target) -> list[int]:
    """Numbers of rows for the cost model; none where there is no model to explain."""
    measurement = config.measurement
    if not (target.products() and measurement.cost_contexts):
        return []
    # Each number of rows of a compiled target costs a compilation: powers of two are enough there.
    return row_counts(measurement.cost_rows, 1 if target.compilation == "inductor" else measurement.cost_dense)


def _time_grid(
    config: RunConfig, target: Target, prompt: Prompt, rows: Sequence[int], clock: Clock
) -> dict[str, Any] | None:
    """Times of calls over rows and contexts for the cost model."""
    if not rows:
        return None
    measurement = config.measurement
    return time_calls(
        target,
        prompt.tokens,
        rows=rows,
        contexts=measurement.cost_contexts,
        calls=measurement.cost_calls,
        seconds=measurement.cost_seconds,
        clock=clock,
        generator=generator_for(config.seed, prompt.id, "cost"),
    ).as_dict()


def _decode_all(config: RunConfig, parts: Parts, session: Session, heartbeat: Callable[[], None]) -> None:
    """Every prompt with its later turns, as often as the configuration says."""
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


def _cell(
    config: Mapping[str, Any],
    model: Mapping[str, Any],
    drafter: Mapping[str, Any],
    original: Mapping[str, Any],
    prompts: str,
) -> str:
    """What makes two runs the same measurement: the resolved config, the weights, the prompts, the version."""
    keep = {key: value for key, value in config.items() if key not in ("tracking", "experiment_name", "advice_dir")}
    text = json.dumps(
        [keep, *(weights.get("sha256") for weights in (model, drafter, original)), prompts, __version__],
        sort_keys=True,
        default=str,
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]
