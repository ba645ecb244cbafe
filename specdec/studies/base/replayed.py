"""Parts that studies which replay texts share: checks of drafters, and strategies replayed on all cores, by prompt."""

import multiprocessing
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pandas as pd

from specdec.disturbance import affinity
from specdec.drafters import drafters
from specdec.drafters.base.lookup import Lookup
from specdec.errors import UsageError
from specdec.progress import stage
from specdec.prompts import first_turn
from specdec.replay.walk import replay_stream
from specdec.structures import Structure, structures
from specdec.studies.base.contract import Bench
from specdec.targets.base import Target
from specdec.text.streams import Stream


@dataclass(frozen=True)
class Strategy:
    """One way to draft."""

    keys: Mapping[str, Any]  # what tells it from the study's other strategies, a column each
    # drafter, structure: config values, as `conf/` has them
    drafter: Mapping[str, Any]
    structure: Mapping[str, Any]


def check_lookup(bench: Bench, drafter: str) -> None:
    """Refuse, by a UsageError, a drafter that looks no tokens up: it cannot be replayed without its model."""
    if not issubclass(drafters.get(drafter), Lookup):
        able = [name for name in drafters.names() if issubclass(drafters.get(name), Lookup)]
        why = f"replays drafters that look tokens up, not models; use one of {', '.join(able)}."
        raise bench.unfit(f"drafter={drafter}", why)


def built_lookups(bench: Bench, configs: Mapping[str, Mapping[str, Any]], fills: Sequence[str]) -> dict[str, Lookup]:
    """Build the drafters of `study.drafters` before anything is decoded, which takes a while. UsageError if one of them
    is badly configured, looks no tokens up, or does not fill all structures of `fills`.
    """
    built: dict[str, Lookup] = {}
    for label, values in configs.items():
        place = f"study.drafters.{label}"
        try:
            drafters.config(values)
            check_lookup(bench, values["name"])
            drafter = drafters.build(values, target=bench.parts.target)
        except UsageError as error:
            raise UsageError(re.sub(r"(?<![\w./-])drafter(?=[.=])", place, str(error))) from None
        lacking = " and no ".join(name for name in fills if name not in drafter.capabilities.fills)
        if lacking or not isinstance(drafter, Lookup):
            raise UsageError(f"Bad value {place}.name={values['name']}: this drafter fills no {lacking}; use another.")
        built[label] = drafter
    return built


def check_rows(bench: Bench) -> dict[str, Any]:
    """Return the run's structure. UsageError unless it is rows, and of a drafter that looks tokens up."""
    structure = bench.values.structure
    check_lookup(bench, bench.values.drafter["name"])
    if structure["name"] != "rows":
        raise bench.unfit(f"structure={structure['name']}", "is about k rows of width w; use structure=rows.")
    return structure


def replay(
    bench: Bench, strategies: Sequence[Strategy], streams: Sequence[Stream]
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Replay every stream by every strategy, shared out over `measurement.workers` processes; the same tables for any
    number of them. Drafters are built once, here, beside the target: one that needs its model makes its tables now, and
    the processes get what it made. UsageError: a drafter that learns from the target's calls.

    Returns a table with a line for each strategy and stream: the strategy's keys, stream (its id), prompt (the unit of
    the bootstrap: turns of a conversation share one), category, context (mean number of cached tokens over the text's
    positions), tokens, rounds, offered (depth, summed), nodes (summed), accepted, rejections, proposals (rounds that
    had one), and paths (rows offered, summed). And histograms, a line for keys, stream, histogram, strategy and value
    that occurred, with its `count` of rounds: "accepted" and "rank", accepted tokens and rank of the accepted node's
    source in the rounds that the strategy won ("" where nothing was accepted); "allotment", rows that the strategy had
    in a round.
    """
    work, limit = list(product(range(len(strategies)), range(len(streams)))), bench.parts.limit
    workers = bench.plan.measurement.workers or len(affinity())
    total = len(strategies) * sum(min(len(stream.generated), limit) for stream in streams)
    lines: list[dict[str, Any]] = []
    counts: list[dict[str, Any]] = []
    with stage("replaying", total=total, told=False) as under_way:
        given = _built(strategies, bench.parts.target), streams, limit
        for (strategy, number), (row, histograms) in zip(work, _results(work, workers, *given), strict=True):
            stream = streams[number]
            key = {**strategies[strategy].keys, "stream": stream.id, "category": stream.category}
            prompt, context = first_turn(stream.id), len(stream.prompt) - 1 + (row["tokens"] + 1) / 2
            lines.append({**key, **row, "context": context, "prompt": prompt})
            counts += [
                {**key, "histogram": name, "strategy": source, "value": value, "count": count, "prompt": prompt}
                for (name, source, value), count in histograms.items()
            ]
            under_way.advance(row["tokens"])
            bench.heartbeat()
    return pd.DataFrame(lines), pd.DataFrame(counts)


def _built(strategies: Sequence[Strategy], target: Target) -> list[tuple[Lookup, Structure]]:
    """Build the drafter and the structure of each strategy; those with equal drafters share one."""
    made: dict[str, Lookup] = {}
    pairs = []
    for strategy in strategies:
        key, name = repr(sorted(strategy.drafter.items())), strategy.drafter["name"]
        if key not in made:
            drafter = drafters.build(strategy.drafter, target=target)
            assert isinstance(drafter, Lookup)  # checked before anything was decoded
            if drafter.capabilities.replay == "calling":
                raise UsageError(
                    f"Bad value drafter={name}: it learns from the target's calls, which recorded text has not; decode "
                    "with python -m specdec.run, or compare it with +experiment=all_drafters."
                )
            made[key] = drafter
        pairs.append((made[key], structures.build(strategy.structure)))
    return pairs


Result = tuple[dict[str, int], Counter[tuple[str, str, int]]]
"""The sums, and the histograms, of one strategy and stream."""
_given: tuple[Sequence[tuple[Lookup, Structure]], Sequence[Stream], int]
"""Strategies as they were built, streams and the limit: all that a process needs to replay any of them."""


def _begin(built: Sequence[tuple[Lookup, Structure]], streams: Sequence[Stream], limit: int) -> None:
    global _given
    _given = built, streams, limit


def _replayed(item: tuple[int, int]) -> Result:
    """Replay one strategy along one stream, given by their places."""
    built, streams, limit = _given
    strategy, stream = item
    rounds = replay_stream(*built[strategy], streams[stream], limit)
    row = {
        "tokens": rounds.tokens,
        "rounds": len(rounds),
        "offered": int(rounds.offered.sum()),
        "nodes": int(rounds.nodes.sum()),
        "accepted": int(rounds.accepted.sum()),
        "rejections": int(rounds.rejected.sum()),
        "proposals": int((rounds.nodes > 0).sum()),
        "paths": int(rounds.leaves.sum()),
    }
    sources = [rounds.strategies[number] for number in rounds.strategy.tolist()]
    histograms: Counter[tuple[str, str, int]] = Counter()
    for accepted, source, rank in zip(rounds.accepted.tolist(), sources, rounds.rank.tolist(), strict=True):
        histograms["accepted", source if accepted else "", accepted] += 1
        if accepted:
            histograms["rank", source, rank] += 1
    if rounds.proposals is None:  # all of a draft has one source
        rows = (Counter({source: leaves}) for source, leaves in zip(sources, rounds.leaves.tolist(), strict=True))
    else:
        rows = (Counter(each.source[leaf].strategy for leaf in each.tree.leaves) for each in rounds.proposals)
    for allotment in rows:
        histograms.update(("allotment", source, count) for source, count in allotment.items() if count)
    return row, histograms


def _results(work: Sequence[tuple[int, int]], workers: int, *given: Any) -> Iterator[Result]:
    """Yield one result per item of `work`, in its order."""
    workers = min(workers, len(work))
    if workers <= 1:
        _begin(*given)
        yield from map(_replayed, work)
        return
    # Not forked: a process that has threads, as torch's, cannot be copied safely.
    with multiprocessing.get_context("spawn").Pool(workers, _begin, given) as pool:
        yield from pool.imap(_replayed, work, chunksize=max(1, min(64, len(work) // (4 * workers))))
