"""A server under load, simulated: continuous batching with and without speculation, from recorded acceptance and a cost
model; and the closed condition of study `batching`, simulated to compare it with what was measured.

Texts have accepted lengths, recorded or drawn from a law; the seconds of steps are measured here, fitted by a run, or
published.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from math import nan
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any

import numpy as np
import pandas as pd
from pydantic import Field

from specdec.analysis.cost.call_cost import fit_server_calls
from specdec.analysis.read.runs import open_folder
from specdec.analysis.rounds import drafted
from specdec.batching.batch_parts import batch_drafter, batch_target
from specdec.batching.decode_batch import decode_batch
from specdec.config import AtLeastOne, DraftSize, Named, NonEmpty, Probability, typed
from specdec.cost_model import measured_cost
from specdec.drafters.base.lookup import Lookup
from specdec.drafters.recorded import RecordedLengths
from specdec.errors import UsageError, in_one_line
from specdec.records import Request
from specdec.replay.expected_rounds import lengths_ahead
from specdec.serving import server
from specdec.session.arm import seeded_request
from specdec.structures.chain import Chain
from specdec.studies.base import Ascending, Bench, Positive, Study, studies
from specdec.studies.base.live_runs import host_seconds
from specdec.targets.replay import Replay, load_cost
from specdec.text.streams import Stream
from specdec.timing.calls import time_drafts, time_shapes

_SUMS = ("tokens", "steps", "seconds")


@typed
class TextLaw:
    """A law of requests: draft tokens agree with chance alpha, outputs are geometric."""

    alpha: Probability
    prompt_tokens: AtLeastOne
    output_tokens: AtLeastOne


@typed
class ServingConfig(Named):
    run: NonEmpty | None
    method: NonEmpty | None
    law: TextLaw | None
    batching: NonEmpty | None
    cost: NonEmpty | None
    draft_growth: Probability | None
    overhead_growth: Probability | None
    slots: AtLeastOne
    gammas: Ascending[DraftSize]
    loads: Ascending[Positive]
    arrival_times: NonEmpty | None
    requests: Annotated[int, Field(ge=2)]
    warmup: Annotated[int, Field(ge=0)]
    replications: Annotated[int, Field(ge=2)]
    target_factor: Positive
    target_s: Positive | None
    contexts: Ascending[AtLeastOne]
    calls: AtLeastOne
    seconds: Positive


@dataclass(frozen=True)
class ServedTexts:
    """Texts for a server to write."""

    texts: tuple[server.ServedText, ...]  # at least one
    source: str  # words for where they come from
    unknown: float = 0.0  # share of positions whose length is only known to be at least what stands there

    def queue(self, seeds: list[int], size: int) -> Iterator[server.Arrival]:
        """Return drawn texts that all wait from the start."""
        drawn = np.random.default_rng(seeds).integers(len(self.texts), size=size)
        return iter([server.Arrival(0.0, self.texts[int(place)]) for place in drawn])


def texts_along(bench: Bench, streams: Sequence[Stream], gammas: Sequence[int]) -> ServedTexts:
    """Return the target's greedy texts with the lengths that the run's drafter would have accepted at these gammas.
    UsageError: see `lengths_ahead`; or the drafter drafts fewer tokens.
    """
    drafter, target, deepest = bench.parts.chosen.drafter, bench.parts.target, max(gammas)
    most = drafter.capabilities.deepest
    if most is not None and most < deepest:
        raise UsageError(
            f"Bad value study.gammas: drafter {bench.values.drafter['name']!r} drafts {most} tokens at most, not "
            f"{deepest}; lower them."
        )
    chains = [Chain(gamma) for gamma in gammas]
    drafter.prepare(max(len(each.prompt) + len(each.generated) for each in streams) + deepest + 1, chains[-1])
    texts = []
    with bench.progress("accepted lengths", len(streams)) as advance:
        for stream in streams:
            by_gamma = lengths_ahead(drafter, target, chains, stream)
            texts.append(server.ServedText(len(stream.prompt), by_gamma[deepest], by_gamma))
            advance()
    tokens = sum(each.tokens for each in texts)
    source = f"{len(texts):,} greedy texts of {bench.parts.prompts.name}, {tokens:,} tokens, {bench.parts.chosen.label}"
    return ServedTexts(tuple(texts), source)


def texts_of_run(folder: Path, method: str | None, deepest: int) -> ServedTexts:
    """Return the texts of a finished run on chains, by its rounds.

    A round that begins at s and commits n tokens says that a round at s + k would commit at least n - k, for a drafter
    whose proposals depend on the text before them; exactly that where a rejection was seen. Rounds of all gammas are
    joined; a position that no rejection bounds keeps what is known, so that acceptance is rather under- than
    overstated. `method` is the drafter's name in the run, None where it has one only. UsageError for no such folder,
    drafter or gamma.
    """
    columns = ["method", "gamma", "repeat", "prompt", "round", "context", "committed", "rejected", "offered_nodes"]
    try:
        rounds = drafted(open_folder(folder).table("rounds.parquet", [*columns, "offered"]))
    except UsageError as error:
        raise UsageError(f"Bad value study.run: {error}") from None
    methods = list(rounds["method"].unique())
    chosen = method or (methods[0] if len(methods) == 1 else None)
    if chosen not in methods:
        raise UsageError(f"Bad value study.method={method}: {folder} has rounds of {', '.join(methods)}; give one.")
    rounds = rounds[(rounds["method"] == chosen) & (rounds["repeat"] == 0)]
    if (rounds["offered_nodes"] > rounds["offered"]).any():
        raise UsageError(f"Bad value study.run={folder}: its drafts branch; a server is simulated for chains.")
    if rounds["gamma"].max() < deepest:
        raise UsageError(
            f"Bad value study.gammas: {folder} drafted {rounds['gamma'].max()} tokens at most, not {deepest}; lower "
            "them, or run with a larger structure.gamma."
        )
    texts, unknown, positions = [], 0, 0
    for _, mine in rounds.groupby("prompt", sort=False):
        first = int(mine["context"].min())  # of the prompt, the root included
        size = int(mine.groupby("gamma")["committed"].sum().min())
        lengths, exact = [1] * size, [False] * size
        for context, committed, rejected in mine[["context", "committed", "rejected"]].itertuples(index=False):
            for ahead in range(committed):
                place = context - first + ahead
                if place < size and committed - ahead >= lengths[place]:
                    lengths[place], exact[place] = committed - ahead, exact[place] or bool(rejected)
        texts.append(server.ServedText(first, tuple(lengths)))
        unknown, positions = unknown + size - sum(exact), positions + size
    tokens = sum(each.tokens for each in texts)
    source = f"{len(texts):,} texts of the run in {folder}, {tokens:,} tokens, drafter {chosen}"
    return ServedTexts(tuple(texts), source, unknown / positions)


@dataclass(frozen=True)
class ServerCost:
    """The costs of a server's steps, and the times that they were fitted to."""

    steps: server.StepSeconds  # by a cost model, with the growth of draft and overhead where the person gives none
    # calls that were timed here
    call_times: pd.DataFrame = field(
        default_factory=partial(pd.DataFrame, columns=["k", "w", "context", "seconds"], dtype=float)
    )
    error: tuple[float, float] = (nan, nan)  # of the largest batch, by a fit that saw only smaller ones: median, worst


def cost_of_server(bench: Bench, config: ServingConfig) -> ServerCost:
    """Return the costs: those of `study.cost`, else those of the run, else those of target=replay, else measured here.
    UsageError: see `load_cost`; or a target that takes no batches.
    """
    target, drafter = bench.parts.target, bench.parts.chosen.drafter
    looks_up = drafter.looks_up if isinstance(drafter, RecordedLengths) else isinstance(drafter, Lookup)
    if config.cost is not None or config.run is not None:
        cost = load_cost(str(config.cost or config.run))
        measured = cost.source.startswith("measured by the run")  # of one sequence on that machine, by depth of a draft
        return ServerCost(server.StepSeconds(cost, measured or not looks_up, float(measured), float(measured)))
    if isinstance(target, Replay):
        own = drafter.cost if isinstance(drafter, RecordedLengths) else None
        cost = target.cost if own is None else replace(target.cost, draft=own)
        return ServerCost(server.StepSeconds(cost, own is not None or not looks_up, 0.0, 0.0))
    instead = "give the name of a cost model, such as study.cost=h100_llama31_8b."
    if "rows" not in target.capabilities.evaluations or "rows" not in target.capabilities.structures:
        raise UsageError(
            f"Bad value study.cost=null: target {bench.plan.target_values['name']!r} takes no batches that could be "
            f"timed; {instead}"
        )
    try:
        batch_target(target, 1)  # decoded live behind the timing, which takes a while
    except UsageError as refused:
        why = str(refused).partition(": ")[2].partition("; use ")[0]
        raise UsageError(f"Bad value study.cost=null: {why}; {instead}") from None
    # Time calls on batches, drafts by depth, and what a round takes besides, on one prompt; fit all three.
    prompt, gammas, slots = bench.parts.prompts.prompts[0].tokens, config.gammas, config.slots
    batches = sorted({1 << power for power in range(slots.bit_length())} | {slots})
    asked = [(batch, gamma) for batch in batches for gamma in (0, *gammas)]
    timer = bench.timer("blocks", config.calls, config.seconds)
    times = time_shapes(target, prompt, asked, config.contexts, timer, ("rows",))
    coefficients, error = fit_server_calls(times)
    timer = bench.timer("drafts", config.calls, config.seconds)
    drafts = time_drafts(target, drafter, [Chain(gamma) for gamma in gammas], prompt, timer)
    by_depth = drafts.groupby("depth")["seconds"].median().to_dict() if len(drafts) else {}
    output = bench.parts.primary.decode(Request(prompt, min(32, bench.parts.limit)), bench.clock)
    _, _, rest = host_seconds(output, bench.clock)
    source = f"calls on batches, drafts and commits timed in this run, {len(times):,} calls"
    cost = measured_cost(coefficients, by_depth, name="measured", source=source, overhead_s=fmean(rest))
    growth = _live_growth(bench, prompt, gammas[-1], slots)
    return ServerCost(server.StepSeconds(cost, True, *growth), times, (error.median, error.worst))


def _live_growth(bench: Bench, prompt: Sequence[int], gamma: int, slots: int) -> tuple[float, float]:
    """Decode 16 tokens of a text, alone and `slots` times at once; return the growth of drafts and of what follows."""
    parts, drafts, rest = bench.parts, dict[int, float](), dict[int, float]()
    for batch in sorted({1, slots}):
        requests = [
            seeded_request(parts.target, (f"live {place}", prompt), 16, bench.plan.seed, ("draft", "accept"))
            for place in range(batch)
        ]
        target, drafter = batch_target(parts.target, batch), batch_drafter(parts.chosen.drafter, parts.target, batch)
        decoded = decode_batch(target, drafter, parts.primary.verifier, Chain(gamma), requests, bench.clock)
        full = [step for step in decoded.steps if len(step.rounds) == batch]
        full = full[1:] or full  # the first step meets cold caches
        drafts[batch] = median(step.draft_s for step in full)
        rest[batch] = median(step.accept_s + step.commit_s for step in full)
        bench.heartbeat()
    return _growth(pd.Series(drafts)), _growth(pd.Series(rest))


def open_batches(folder: Path, drafter: str, gammas: Sequence[int], slots: int) -> tuple[pd.DataFrame, ServerCost]:
    """Read what study `batching` measured of a drafter: batch, gamma (0 without drafts), repeat, and tokens, steps and
    seconds while every slot was in use; and the costs by its cost model of calls on one sequence, its timed drafts, and
    the rest of its steps. UsageError for no output folder of the study, or a drafter, gammas or slots that it has not.
    """
    try:
        study = open_folder(folder)
        live, drafts = map(study.table, ("batching.parquet", "drafts.parquet"))
        model = study.content("batching.json")
    except UsageError as error:
        raise UsageError(f"Bad value study.batching: {error} Give the output folder of +experiment=batching.") from None
    mine = live[live["drafter"] == drafter]
    if mine.empty:
        names = ", ".join(sorted(live["drafter"].unique()))
        raise UsageError(f"Bad value study.batching={folder}: it measured {names}, not drafter {drafter!r}; use one.")
    lacking = sorted(set(gammas) - set(mine["gamma"]))
    if lacking or slots > mine["batch"].max():
        raise UsageError(
            f"Bad value study.batching={folder}: it measured gammas {', '.join(map(str, sorted(set(mine['gamma']))))} "
            f"and batches up to {mine['batch'].max()}; lower study.gammas or study.slots to those."
        )
    plain = mine[["batch", "repeat", *(f"baseline_{name}" for name in _SUMS)]].drop_duplicates(["batch", "repeat"])
    plain = plain.rename(columns=lambda name: name.removeprefix("baseline_")).assign(gamma=0)
    lines = pd.concat([plain, mine[["batch", "gamma", "repeat", *_SUMS]]], ignore_index=True)
    # To the cost of calls: drafts and the rest of a step, those of the smallest batch and what further sequences add.
    timed = drafts[drafts["drafter"] == drafter].groupby(["gamma", "batch"])["seconds"].median().unstack("batch")
    rest = mine.assign(rest=mine["seconds"] - mine["draft_s"] - mine["verify_s"]).groupby("batch")[["rest", "steps"]]
    overhead = rest.sum()["rest"] / rest.sum()["steps"]
    values = dict(model["cost"])
    values |= {"source": f"calls on one sequence, drafts and steps of {folder}", "overhead_s": float(overhead.iloc[0])}
    cost = measured_cost(values, timed[timed.columns.min()].to_dict())
    return lines, ServerCost(server.StepSeconds(cost, True, _growth(timed.sum()), _growth(overhead)))


def _growth(seconds: pd.Series) -> float:
    """Return the share (0 to 1) of the smallest batch's seconds that each further sequence adds, up to the largest."""
    smallest, largest = int(seconds.index[0]), int(seconds.index[-1])
    if largest == smallest or not seconds.iloc[0] > 0:
        return 0.0
    return float(np.clip((seconds.iloc[-1] / seconds.iloc[0] - 1) / (largest - smallest), 0.0, 1.0))


def arrival_times(path: Path) -> list[float]:
    """Read the seconds at which requests arrived: a JSON list of numbers, or a number on each line. UsageError for no
    such file, or not at least two ascending numbers that differ.
    """
    try:
        content = path.read_text(encoding="utf-8")
        read = json.loads(content) if content.lstrip().startswith("[") else content.split()
        times = [float(each) for each in read]
    except (OSError, ValueError, TypeError) as error:
        reason = in_one_line(error)
        raise UsageError(f"Bad value study.arrival_times={path}: cannot be read as numbers ({reason}).") from None
    ordered = all(before <= after for before, after in zip(times, times[1:], strict=False))
    if len(times) < 2 or not ordered or not times[0] < times[-1] < float("inf"):
        raise UsageError(f"Bad value study.arrival_times={path}: give at least two ascending seconds that differ.")
    return times


@studies.register("serving")
class Serving(Study):
    """All times are simulated. Tables:

    `recording`: one line: what was simulated, in words and numbers.
    `call_times`: calls on batches that were timed here for the cost model, as `time_shapes` has them; perhaps empty.
    `step_times`: batch, gamma, seconds of a step by the cost model at the texts' mean context, and tokens_per_round.
    `capacity`: policy, replication, requests, tokens and seconds while all slots were full and the queue was not empty.
    `served`: policy, load (offered requests over the capacity of plain decoding), rate (per second), replication,
        number, the times of `ServedRequest`, tokens, rounds, and alone_s, its latency on an idle server without drafts;
        the requests behind the warm-up, in order.
    `served_steps`: policy, load, replication, batch, gamma, and steps, seconds and tokens in the window from the first
        to the last arrival of `served`.
    `simulations`: policy, load, replication, window_s, little (relative error of Little's law), queue_begin and
        queue_end (requests that waited when the window began and ended), prefill_share.
    `measured_batches`: see `open_batches`; empty without study.batching.
    `closed`: the condition of study `batching` simulated: slots that are always full. by ("measured": with its own mean
        seconds of a step; "model": with those of the cost model), batch, gamma, tokens, steps, seconds.
    """

    def __init__(self, config: ServingConfig) -> None:
        self._config = config

    def run(self, bench: Bench) -> Mapping[str, pd.DataFrame]:
        config, law = self._config, self._config.law
        if config.run is not None and law is not None:
            raise UsageError("Bad values study.run and study.law: texts come from one of them; set the other to null.")
        gammas = config.gammas
        times = [] if config.arrival_times is None else arrival_times(Path(config.arrival_times).expanduser())
        batches = pd.DataFrame({name: [] for name in ("batch", "gamma", *_SUMS)}, dtype=float)
        cost: ServerCost | None = None
        if config.batching is not None:
            name = config.method or str(bench.values.drafter["name"])
            batches, cost = open_batches(Path(config.batching).expanduser(), name, gammas, config.slots)
        if config.run is not None:
            texts = texts_of_run(Path(config.run).expanduser(), config.method, gammas[-1])
        elif law is not None:
            sizes = law.prompt_tokens, law.output_tokens, gammas[-1]
            drawn = server.drawn_texts(500, law.alpha, *sizes, bench.plan.seed)
            said = (
                f"texts drawn from a law: alpha {law.alpha:g}, independent; prompts of {law.prompt_tokens:,} tokens, "
                f"outputs geometric with mean {law.output_tokens:,}"
            )
            texts = ServedTexts(drawn, said)
        else:
            texts = texts_along(bench, bench.texts(), gammas)
        if cost is None or config.cost is not None:
            cost = cost_of_server(bench, config)
        own = {name: getattr(config, name) for name in ("draft_growth", "overhead_growth")}
        sums = batches.groupby(["gamma", "batch"])[["seconds", "steps"]].sum().reset_index()
        lines = sums.assign(step=sums["seconds"] / sums["steps"]).groupby("gamma")
        measured = {int(gamma): (line["batch"].to_numpy(), line["step"].to_numpy()) for gamma, line in lines}
        growth = {name: value for name, value in own.items() if value is not None}
        steps = replace(cost.steps, measured=measured, **growth)
        # Tokens in the cache of a sequence, over all positions of all texts, and those that a round commits: means.
        written = sum(each.tokens for each in texts.texts)
        cached = sum(each.tokens * (each.prompt_tokens - 1 + (each.tokens - 1) / 2) for each in texts.texts) / written
        rates = {gamma: written / sum(each.rounds(gamma) for each in texts.texts) for gamma in (0, *gammas)}
        step_times = [
            (batch, gamma, steps.step(batch, gamma, batch * cached), rate)
            for gamma, rate in rates.items()
            for batch in range(1, config.slots + 1)
        ]
        recording = {
            "texts": texts.source,
            "unknown": texts.unknown,
            "prompt_tokens": fmean(each.prompt_tokens for each in texts.texts),
            "output_tokens": fmean(each.tokens for each in texts.texts),
            "cost": steps.cost.source if batches.empty else f"steps measured by {config.batching}",
            "error_median": cost.error[0],
            "error_worst": cost.error[1],
            "draft_growth": steps.draft_growth,
            "overhead_growth": steps.overhead_growth,
            "slots": config.slots,
            "arrivals": "arrivals at recorded times" if times else "Poisson arrivals",
            **{name: getattr(config, name) for name in ("requests", "warmup", "replications", "target_factor")},
            "target_s": nan if config.target_s is None else config.target_s,
        }
        return {
            "recording": pd.DataFrame([recording]),
            "call_times": cost.call_times,
            "step_times": pd.DataFrame(step_times, columns=["batch", "gamma", "seconds", "tokens_per_round"]),
            **self._simulated(bench, texts, steps, times),
            "measured_batches": batches,
            "closed": self._closed(texts, steps, batches),
        }

    def _closed(self, texts: ServedTexts, steps: server.StepSeconds, measured: pd.DataFrame) -> pd.DataFrame:
        """Serve a queue with slots that are always full, by each batch and gamma that was measured."""
        lines = []
        cells = measured[measured["gamma"].isin((0, *self._config.gammas))][["batch", "gamma"]].drop_duplicates()
        for batch, gamma in cells.sort_values(["batch", "gamma"]).itertuples(index=False, name=None):
            for by, seconds in (("measured", steps), ("model", replace(steps, measured={}))):
                queue = texts.queue([self._config.replications, 4], 64 + 8 * batch)
                served = server.serve(queue, server.FixedGamma(gamma), seconds, batch)
                full = [each for each in served.steps if each.batch == batch]
                sums = sum(each.tokens for each in full), len(full), sum(each.seconds for each in full)
                lines.append((by, batch, gamma, *sums))
        return pd.DataFrame(lines, columns=["by", "batch", "gamma", *_SUMS])

    def _policies(self, steps: server.StepSeconds) -> list[server.Policy]:
        """Return the policies as they begin, plain decoding first."""
        gammas = self._config.gammas
        return [*map(server.FixedGamma, (0, *gammas)), server.AdaptiveGamma(gammas, steps)]

    def _simulated(
        self, bench: Bench, texts: ServedTexts, steps: server.StepSeconds, times: Sequence[float]
    ) -> dict[str, pd.DataFrame]:
        """Serve a queue that never empties by every policy, and count what finishes while all slots are full; then
        serve every load, over the capacity of plain decoding, by every policy, several times. `times` are those of
        recorded arrivals, empty for Poisson.
        """
        config, slots, lines = self._config, self._config.slots, []
        for replication in range(config.replications):
            for policy in self._policies(steps):
                served = server.serve(texts.queue([replication, 3], 12 * slots), policy, steps, slots)
                ends = sorted(each.finished for each in served.requests if each.finished is not None)
                begin, end = ends[2 * slots - 1], max(each.admitted or 0.0 for each in served.requests)
                finished = sum(begin < each <= end for each in ends)
                tokens = sum(each.tokens for each in served.steps if begin < each.start + each.seconds <= end)
                lines.append((policy.name, replication, finished, tokens, end - begin))
        full = pd.DataFrame(lines, columns=["policy", "replication", "requests", "tokens", "seconds"])
        plain = full[full["policy"] == server.FixedGamma(0).name]
        most = float(plain["requests"].sum() / plain["seconds"].sum())
        # By text, the latency of a request on an idle server that does not speculate.
        alone: dict[int, float] = {}
        for text in texts.texts:
            cached = text.prompt_tokens - 1
            rounds = sum(steps.step(1, 0, cached + place) for place in range(text.tokens))
            alone[id(text)] = steps.prefill(1, cached) + rounds
        parts: dict[str, list[pd.DataFrame]] = {"served": [], "served_steps": [], "simulations": []}
        simulations = list(product(config.loads, range(config.replications)))
        with bench.progress("simulating", len(simulations) * len(self._policies(steps))) as advance:
            for load, replication in simulations:
                for policy in self._policies(steps):
                    rate, seed = load * most, bench.plan.seed + replication
                    arrivals = server.arriving(rate, texts.texts, seed, times)
                    served = server.serve(arrivals, policy, steps, slots, config.warmup + config.requests)
                    keys = {"policy": policy.name, "load": load, "rate": rate, "replication": replication}
                    for name, table in _tables(served, config.warmup, config.requests, alone).items():
                        parts[name].append(table.assign(**keys))
                    advance()
        return {"capacity": full, **{name: pd.concat(tables, ignore_index=True) for name, tables in parts.items()}}


def _tables(served: server.Served, warmup: int, count: int, alone: Mapping[int, float]) -> dict[str, pd.DataFrame]:
    """Return what a simulation leaves behind its warm-up: requests, steps, and a line of its own."""
    kept = served.requests[warmup : warmup + count]
    names = ["number", "arrived", "admitted", "prefilled", "first", "finished", "rounds"]
    requests = pd.DataFrame([[getattr(each, name) for name in names] for each in kept], columns=names)
    requests["tokens"] = [each.text.tokens for each in kept]
    requests["alone_s"] = [alone[id(each.text)] for each in kept]
    begin, end = kept[0].arrived, kept[-1].arrived
    within = [(s.batch, s.gamma, s.seconds, s.tokens) for s in served.steps if begin < s.start + s.seconds <= end]
    steps = pd.DataFrame(within, columns=["batch", "gamma", "seconds", "tokens"])
    grouped = steps.assign(steps=1).groupby(["batch", "gamma"], as_index=False).sum()
    line: dict[str, Any] = {"window_s": end - begin, "little": abs(served.area / served.sojourn_s - 1)}
    for name, at in (("queue_begin", begin), ("queue_end", end)):
        line[name] = sum(
            each.arrived <= at and (each.admitted is None or each.admitted > at) for each in served.requests
        )
    line["prefill_share"] = served.prefill_s / served.ended
    return {"served": requests, "served_steps": grouped, "simulations": pd.DataFrame([line])}
