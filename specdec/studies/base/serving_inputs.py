"""Inputs of a simulated server: texts with accepted lengths, recorded or drawn from a law, and the seconds of its
steps, measured here, fitted by a run, or published.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import nan
from pathlib import Path
from statistics import fmean, median

import numpy as np
import pandas as pd

from specdec.analysis.cost.call_cost import fit_server_calls
from specdec.analysis.rounds import drafted
from specdec.batching.batch_drafter import batch_drafter
from specdec.batching.batch_target import batch_target
from specdec.batching.decode_batch import decode_batch
from specdec.config import validated
from specdec.cost_model import SimulatedCost, line_through, load_cost
from specdec.drafters.base.lookup import Lookup
from specdec.drafters.recorded import RecordedLengths
from specdec.errors import UsageError
from specdec.records import Request
from specdec.replay.expected_rounds import lengths_ahead
from specdec.serving.arrivals import ServedText
from specdec.session.arm import seeded_request
from specdec.structures import structures
from specdec.studies.base.contract import Bench
from specdec.studies.base.live_runs import host_seconds
from specdec.targets.replay import Replay
from specdec.text.streams import Stream
from specdec.timing.shapes import time_drafts


@dataclass(frozen=True)
class ServedTexts:
    """Texts for a server to write."""

    texts: tuple[ServedText, ...]  # at least one
    source: str  # words for where they come from
    unknown: float = 0.0  # share of positions whose length is only known to be at least what stands there

    def tokens_per_round(self, gamma: int) -> float:
        """Return the tokens that a round commits on average, over all texts."""
        return sum(each.tokens for each in self.texts) / sum(each.rounds(gamma) for each in self.texts)

    @property
    def cached(self) -> float:
        """Mean tokens in the cache of a sequence, over all positions of all texts."""
        total = sum(each.tokens * (each.prompt_tokens - 1 + (each.tokens - 1) / 2) for each in self.texts)
        return total / sum(each.tokens for each in self.texts)


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
    chains = [structures.build({"name": "chain", "gamma": gamma}) for gamma in gammas]
    drafter.prepare(max(len(each.prompt) + len(each.generated) for each in streams) + deepest + 1, chains[-1])
    texts = []
    with bench.progress("accepted lengths", len(streams)) as advance:
        for stream in streams:
            by_gamma = lengths_ahead(drafter, target, chains, stream)
            texts.append(ServedText(len(stream.prompt), by_gamma[deepest], by_gamma))
            advance()
    tokens = sum(each.tokens for each in texts)
    source = f"{len(texts):,} greedy texts of {bench.parts.prompts.name}, {tokens:,} tokens, {bench.parts.chosen.label}"
    return ServedTexts(tuple(texts), source)


def texts_of_run(folder: Path, method: str | None, deepest: int) -> ServedTexts:
    """Return the texts of a finished run on chains, by its rounds.

    A round that begins at s and commits n tokens says that a round at s + k would commit at least n - k, for a drafter
    whose proposals depend on the text before them; exactly that where a rejection was seen. Rounds of all gammas are
    joined; a position that no rejection bounds keeps what is known, so that acceptance is rather under- than
    overstated. UsageError for no such folder, drafter or gamma.

    method: the drafter's name in the run; None where it has one only.
    """
    path = folder / "rounds.parquet"
    if not path.is_file():
        raise UsageError(f"Bad value study.run: {path} does not exist; give the output folder of a finished run.")
    columns = ["method", "gamma", "repeat", "prompt", "round", "context", "committed", "rejected", "offered_nodes"]
    rounds = drafted(pd.read_parquet(path, columns=[*columns, "offered"]))
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
        texts.append(ServedText(first, tuple(lengths)))
        unknown, positions = unknown + size - sum(exact), positions + size
    tokens = sum(each.tokens for each in texts)
    source = f"{len(texts):,} texts of the run in {folder}, {tokens:,} tokens, drafter {chosen}"
    return ServedTexts(tuple(texts), source, unknown / positions)


@dataclass(frozen=True)
class ServerCost:
    """The costs of a server's steps, and the times that they were fitted to."""

    cost: SimulatedCost  # of calls, drafts and overhead
    model_drafts: bool  # see `StepSeconds`
    growth: tuple[float, float]  # of draft and overhead, where the person gives none
    # calls that were timed here
    call_times: pd.DataFrame = field(
        default_factory=partial(pd.DataFrame, columns=["k", "w", "context", "seconds"], dtype=float)
    )
    error: tuple[float, float] = (nan, nan)  # of the largest batch, by a fit that saw only smaller ones: median, worst


def cost_of_server(
    bench: Bench, name: str | None, run: str | None, shapes: Mapping[str, Sequence[int]], calls: int, seconds: float
) -> ServerCost:
    """Return the costs: those called `name`, else those of the run, else those of target=replay, else measured here.
    UsageError: see `load_cost`; or a target that takes no batches.

    shapes: batches, gammas and contexts of the calls to time; calls, seconds: see `Bench.timer`.
    """
    target, drafter = bench.parts.target, bench.parts.chosen.drafter
    looks_up = drafter.looks_up if isinstance(drafter, RecordedLengths) else isinstance(drafter, Lookup)
    if name is not None or run is not None:
        cost = load_cost(str(name or run))
        measured = cost.source.startswith("measured by the run")  # of one sequence on that machine, by depth of a draft
        return ServerCost(cost, measured or not looks_up, (1.0, 1.0) if measured else (0.0, 0.0))
    if isinstance(target, Replay):
        own = drafter.cost if isinstance(drafter, RecordedLengths) else None
        cost = target.cost if own is None else validated(SimulatedCost, {**asdict(target.cost), "draft": vars(own)})
        return ServerCost(cost, own is not None or not looks_up, (0.0, 0.0))
    if "rows" not in target.capabilities.evaluations or "rows" not in target.capabilities.structures:
        raise UsageError(
            f"Bad value study.cost=null: target {bench.plan.target_values['name']!r} takes no batches that could be "
            "timed; give the name of a cost model, such as study.cost=h100_llama31_8b."
        )
    # Time calls on batches, drafts by depth, and what a round takes besides, on one prompt; fit all three.
    parts = bench.parts
    prompt = parts.prompts.prompts[0].tokens
    asked = [(batch, gamma) for batch in shapes["batches"] for gamma in (0, *shapes["gammas"])]
    times = bench.time_calls(prompt, asked, shapes["contexts"], calls, seconds, ("rows",))
    coefficients, error = fit_server_calls(times)
    depths = sorted(set(shapes["gammas"]))
    chains = [structures.build({"name": "chain", "gamma": depth}) for depth in depths]
    drafts = time_drafts(parts.target, parts.chosen.drafter, chains, prompt, bench.timer("drafts", calls, seconds))
    by_depth = drafts.groupby("depth")["seconds"].median().to_dict() if len(drafts) else {}
    fixed, step = line_through(by_depth) if by_depth else (0.0, 0.0)
    output = parts.primary.decode(Request(prompt, min(32, bench.parts.limit)), bench.clock)
    _, _, rest = host_seconds(output, bench.clock)
    values = {
        **dict.fromkeys(("token_s", "weights_s", "lookup_s", "lookup_share"), 0.0),
        **coefficients,
        **{"name": "measured", "tile": 1, "overlap": False, "overhead_s": fmean(rest)},
        "source": f"calls on batches, drafts and commits timed in this run, {len(times):,} calls",
        "draft": {"fixed_s": fixed, "step_s": step, "cached_s": 0.0},
    }
    cost = validated(SimulatedCost, values, where="cost")
    growth = _live_growth(bench, prompt, depths[-1], shapes["batches"][-1])
    return ServerCost(cost, True, growth, times, (error.median, error.worst))


_LIVE_TOKENS = 16  # of each text that is decoded to see what further sequences add


def _live_growth(bench: Bench, prompt: Sequence[int], gamma: int, slots: int) -> tuple[float, float]:
    """Decode one text alone and `slots` times at once; return the growth of drafts and of what follows the call."""
    parts, drafts, rest = bench.parts, dict[int, float](), dict[int, float]()
    for batch in sorted({1, slots}):
        requests = [
            seeded_request(parts.target, (f"live {place}", prompt), _LIVE_TOKENS, bench.plan.seed, ("draft", "accept"))
            for place in range(batch)
        ]
        decoded = decode_batch(
            target=batch_target(parts.target, batch),
            drafter=batch_drafter(parts.chosen.drafter, parts.target, batch),
            verifier=parts.primary.verifier,
            structure=structures.build({"name": "chain", "gamma": gamma}),
            requests=requests,
            clock=bench.clock,
        )
        full = [step for step in decoded.steps if len(step.slots) == batch]
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
    paths = {name: folder / f"{name}.parquet" for name in ("batching", "drafts")}
    model = folder / "batching.json"
    if not all(path.is_file() for path in (*paths.values(), model)):
        raise UsageError(
            f"Bad value study.batching={folder}: this is no output folder of +experiment=batching; give one."
        )
    live, drafts = (pd.read_parquet(path) for path in paths.values())
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
    columns = ["tokens", "steps", "seconds"]
    plain = mine[["batch", "repeat", *(f"baseline_{name}" for name in columns)]].drop_duplicates(["batch", "repeat"])
    plain = plain.rename(columns=lambda name: name.removeprefix("baseline_")).assign(gamma=0)
    lines = pd.concat([plain, mine[["batch", "gamma", "repeat", *columns]]], ignore_index=True)
    # To the cost of calls: drafts and the rest of a step, those of the smallest batch and what further sequences add.
    timed = drafts[drafts["drafter"] == drafter].groupby(["gamma", "batch"])["seconds"].median().unstack("batch")
    fixed, step = line_through(timed[timed.columns.min()].to_dict())
    rest = mine.assign(rest=mine["seconds"] - mine["draft_s"] - mine["verify_s"]).groupby("batch")[["rest", "steps"]]
    overhead = rest.sum()["rest"] / rest.sum()["steps"]
    values = json.loads(model.read_text(encoding="utf-8"))["cost"]
    values |= {"draft": {"fixed_s": fixed, "step_s": step, "cached_s": 0.0}, "overhead_s": float(overhead.iloc[0])}
    values |= {"source": f"calls on one sequence, drafts and steps of {folder}"}
    growth = _growth(timed.sum()), _growth(overhead)
    return lines, ServerCost(validated(SimulatedCost, values, where="cost"), True, growth)


def _growth(seconds: pd.Series) -> float:
    """Return the share of the seconds of the smallest batch that each further sequence adds, by the largest; 0 to 1.
    `seconds` are by batch, ascending.
    """
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
        reason = " ".join(str(error).split())
        raise UsageError(f"Bad value study.arrival_times={path}: cannot be read as numbers ({reason}).") from None
    ordered = all(before <= after for before, after in zip(times, times[1:], strict=False))
    if len(times) < 2 or not ordered or not times[0] < times[-1] < float("inf"):
        raise UsageError(f"Bad value study.arrival_times={path}: give at least two ascending seconds that differ.")
    return times
