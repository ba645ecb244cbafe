"""A server under load, simulated: continuous batching with and without speculation, from recorded acceptance and a cost
model; and the closed condition of study `batching`, simulated to compare it with what was measured.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from pydantic import Field

from specdec.config import AtLeastOne, NonEmpty, Probability, typed
from specdec.errors import UsageError
from specdec.serving.arrivals import Arrival, arriving, drawn_texts
from specdec.serving.policies import AdaptiveGamma, FixedGamma, Policy
from specdec.serving.server import Served, serve
from specdec.serving.step_seconds import StepSeconds
from specdec.studies.base import Ascending, Bench, Positive, Study, studies
from specdec.studies.base.serving_inputs import (
    ServedTexts,
    ServerCost,
    arrival_times,
    cost_of_server,
    open_batches,
    texts_along,
    texts_of_run,
)


@typed
class TextLaw:
    """A law of requests: draft tokens agree with chance alpha, outputs are geometric."""

    alpha: Probability
    prompt_tokens: AtLeastOne
    output_tokens: AtLeastOne


@typed
class ServingConfig:
    name: Literal["serving"]
    run: NonEmpty | None
    method: NonEmpty | None
    law: TextLaw | None
    batching: NonEmpty | None
    cost: NonEmpty | None
    draft_growth: Probability | None
    overhead_growth: Probability | None
    slots: AtLeastOne
    gammas: Ascending[AtLeastOne]
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
class _Plan:
    """The parts of all simulations."""

    config: ServingConfig
    texts: ServedTexts
    steps: StepSeconds
    times: Sequence[float]  # recorded arrivals; empty for Poisson

    def policies(self) -> list[Policy]:
        """Return the policies as they begin, plain decoding first."""
        gammas = self.config.gammas
        return [*map(FixedGamma, (0, *gammas)), AdaptiveGamma(gammas, self.steps)]

    def queue(self, seeds: list[int], size: int) -> Iterator[Arrival]:
        """Return drawn texts that all wait from the start."""
        drawn = np.random.default_rng(seeds).integers(len(self.texts.texts), size=size)
        return iter([Arrival(0.0, self.texts.texts[int(place)]) for place in drawn])


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
            drawn = drawn_texts(500, law.alpha, law.prompt_tokens, law.output_tokens, gammas[-1], bench.plan.seed)
            said = (
                f"texts drawn from a law: alpha {law.alpha:g}, independent; prompts of {law.prompt_tokens:,} tokens, "
                f"outputs geometric with mean {law.output_tokens:,}"
            )
            texts = ServedTexts(drawn, said)
        else:
            texts = texts_along(bench, bench.texts(), gammas)
        if cost is None or config.cost is not None:
            sizes = sorted({1 << power for power in range(config.slots.bit_length())} | {config.slots})
            shapes = {"batches": sizes, "gammas": gammas, "contexts": config.contexts}
            cost = cost_of_server(bench, config.cost, config.run, shapes, config.calls, config.seconds)
        given = config.draft_growth, config.overhead_growth
        draft, overhead = (own if each is None else each for own, each in zip(cost.growth, given, strict=True))
        sums = batches.groupby(["batch", "gamma"])[["seconds", "steps"]].sum()
        measured = (sums["seconds"] / sums["steps"]).to_dict()
        steps = StepSeconds(cost.cost, cost.model_drafts, draft, overhead, measured)
        plan = _Plan(config, texts, steps, times)
        step_times = [
            (batch, gamma, steps.step(batch, gamma, batch * texts.cached), texts.tokens_per_round(gamma))
            for gamma in (0, *gammas)
            for batch in range(1, config.slots + 1)
        ]
        recording = {
            "texts": texts.source,
            "unknown": texts.unknown,
            "prompt_tokens": fmean(each.prompt_tokens for each in texts.texts),
            "output_tokens": fmean(each.tokens for each in texts.texts),
            "cost": cost.cost.source if batches.empty else f"steps measured by {config.batching}",
            "error_median": cost.error[0],
            "error_worst": cost.error[1],
            "draft_growth": draft,
            "overhead_growth": overhead,
            "slots": config.slots,
            "arrivals": "arrivals at recorded times" if times else "Poisson arrivals",
            **{name: getattr(config, name) for name in ("requests", "warmup", "replications", "target_factor")},
            "target_s": float("nan") if config.target_s is None else config.target_s,
        }
        return {
            "recording": pd.DataFrame([recording]),
            "call_times": cost.call_times,
            "step_times": pd.DataFrame(step_times, columns=["batch", "gamma", "seconds", "tokens_per_round"]),
            **_simulated(bench, plan),
            "measured_batches": batches,
            "closed": _closed(plan, batches),
        }


_SUMS = ("tokens", "steps", "seconds")


def _closed(plan: _Plan, measured: pd.DataFrame) -> pd.DataFrame:
    """Serve a queue with slots that are always full, by each batch and gamma that was measured; see `Serving`."""
    lines = []
    cells = measured[measured["gamma"].isin((0, *plan.config.gammas))][["batch", "gamma"]].drop_duplicates()
    for batch, gamma in cells.sort_values(["batch", "gamma"]).itertuples(index=False, name=None):
        for by, steps in (("measured", plan.steps), ("model", replace(plan.steps, measured={}))):
            queue = plan.queue([plan.config.replications, 4], 64 + 8 * batch)
            served = serve(queue, FixedGamma(gamma), steps, batch)
            full = [each for each in served.steps if each.batch == batch]
            sums = sum(each.tokens for each in full), len(full), sum(each.seconds for each in full)
            lines.append((by, batch, gamma, *sums))
    return pd.DataFrame(lines, columns=["by", "batch", "gamma", *_SUMS])


def _simulated(bench: Bench, plan: _Plan) -> dict[str, pd.DataFrame]:
    """Serve a queue that never empties by every policy, and count what finishes while all slots are full; then serve
    every load, over the capacity of plain decoding, by every policy, several times.
    """
    config, slots, lines = plan.config, plan.config.slots, []
    for replication in range(config.replications):
        for policy in plan.policies():
            served = serve(plan.queue([replication, 3], 12 * slots), policy, plan.steps, slots)
            ends = sorted(each.finished for each in served.requests if each.finished is not None)
            begin, end = ends[2 * slots - 1], max(each.admitted or 0.0 for each in served.requests)
            finished = sum(begin < each <= end for each in ends)
            tokens = sum(each.tokens for each in served.steps if begin < each.start + each.seconds <= end)
            lines.append((policy.name, replication, finished, tokens, end - begin))
    full = pd.DataFrame(lines, columns=["policy", "replication", "requests", "tokens", "seconds"])
    plain = full[full["policy"] == FixedGamma(0).name]
    most = float(plain["requests"].sum() / plain["seconds"].sum())
    # By text, the latency of a request on an idle server that does not speculate.
    alone: dict[int, float] = {}
    for text in plan.texts.texts:
        cached, steps = text.prompt_tokens - 1, plan.steps
        rounds = sum(steps.step(1, 0, cached + place) for place in range(text.tokens))
        alone[id(text)] = steps.prefill(1, cached) + rounds
    parts: dict[str, list[pd.DataFrame]] = {"served": [], "served_steps": [], "simulations": []}
    with bench.progress("simulating", len(config.loads) * len(plan.policies()) * config.replications) as advance:
        for load in config.loads:
            for replication in range(config.replications):
                for policy in plan.policies():
                    rate, seed = load * most, bench.plan.seed + replication
                    arrivals = arriving(rate, plan.texts.texts, seed, plan.times)
                    served = serve(arrivals, policy, plan.steps, slots, config.warmup + config.requests)
                    keys = {"policy": policy.name, "load": load, "rate": rate, "replication": replication}
                    for name, table in _tables(served, config.warmup, config.requests, alone).items():
                        parts[name].append(table.assign(**keys))
                    advance()
    return {"capacity": full, **{name: pd.concat(tables, ignore_index=True) for name, tables in parts.items()}}


def _tables(served: Served, warmup: int, count: int, alone: Mapping[int, float]) -> dict[str, pd.DataFrame]:
    """Return what a simulation leaves behind its warm-up: requests, steps, and a line of its own."""
    kept = served.requests[warmup : warmup + count]
    names = ["number", "arrived", "admitted", "prefilled", "first", "finished", "rounds"]
    requests = pd.DataFrame([[getattr(each, name) for name in names] for each in kept], columns=names)
    requests["tokens"] = [each.text.tokens for each in kept]
    requests["alone_s"] = [alone[id(each.text)] for each in kept]
    begin, end = kept[0].arrived, kept[-1].arrived
    steps = pd.DataFrame(
        [(s.batch, s.gamma, s.seconds, s.tokens) for s in served.steps if begin < s.start + s.seconds <= end],
        columns=["batch", "gamma", "seconds", "tokens"],
    )
    grouped = steps.groupby(["batch", "gamma"]).agg(
        steps=("seconds", "size"), seconds=("seconds", "sum"), tokens=("tokens", "sum")
    )
    line: dict[str, Any] = {"window_s": end - begin, "little": abs(served.area / served.sojourn_s - 1)}
    for name, at in (("queue_begin", begin), ("queue_end", end)):
        line[name] = sum(
            each.arrived <= at and (each.admitted is None or each.admitted > at) for each in served.requests
        )
    line["prefill_share"] = served.prefill_s / served.ended
    return {"served": requests, "served_steps": grouped.reset_index(), "simulations": pd.DataFrame([line])}
