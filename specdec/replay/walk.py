"""Replays recorded streams without a target and without tensors: the rounds that greedy decoding takes, at a hundred
thousand tokens a second, so that a grid of strategies costs seconds. Knows no time and no statistics.

Rounds are exactly those of `generate` on target=replay with the same drafter and structure.
"""

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from specdec.drafters import drafters
from specdec.drafters.base.lookup import Lookup
from specdec.errors import UsageError
from specdec.records import TextStart
from specdec.replay.shared_walk import NONE, Track, lead
from specdec.structures import Structure, structures
from specdec.targets.base import Target
from specdec.text.streams import Stream
from specdec.tree_building.lookup_filling import Proposal


@dataclass(frozen=True)
class StreamRounds:
    """The rounds of one stream, one entry of every list per round; see `records.Round` for the terms.

    Attributes:
        tokens: committed in all of them.
        position: tokens of the text before the round.
        offered, nodes: depth of the draft, and nodes of it.
        accepted, rejected: what of its depth became text, and whether a rejection was observed.
        strategy, rank: the source of the last accepted node, or of the first offered one where none was accepted.
        allotment: strategy -> paths (rows) of the draft that it proposed; empty dicts unless asked for.
    """

    tokens: int
    position: list[int] = field(default_factory=list)
    offered: list[int] = field(default_factory=list)
    nodes: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    rejected: list[bool] = field(default_factory=list)
    strategy: list[str] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    allotment: list[dict[str, int]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.position)


def replay_stream(
    drafter: Lookup, structure: Structure, stream: Stream, max_new_tokens: int, allotment: bool = False
) -> StreamRounds:
    """Return the rounds in which greedy decoding writes `stream`, or its first `max_new_tokens`.

    Args:
        allotment: keep which strategies proposed how many rows of each round.
    """
    limit = stream.limit(max_new_tokens)
    text = stream.generated[:limit]
    capacity = len(stream.prompt) + limit + structure.nodes + 1
    track = Track(structure, keep=allotment)
    lead(drafter, [track], TextStart(stream.prompt, capacity, reference=text), text, limit)
    return StreamRounds(
        tokens=len(text),
        position=track.position,
        offered=track.offered,
        nodes=track.nodes,
        accepted=track.accepted,
        rejected=track.rejected,
        strategy=track.strategy,
        rank=track.rank,
        allotment=[_allotment(proposal) for proposal in track.proposals or ()],
    )


def _allotment(proposal: Proposal) -> dict[str, int]:
    leaves = proposal.tree.leaves if proposal.source else ()
    return dict(Counter(proposal.source[leaf].strategy for leaf in leaves))


@dataclass(frozen=True)
class Cell:
    """One strategy of a grid: config values of a drafter and of a structure, as `conf/` has them."""

    drafter: Mapping[str, Any]
    structure: Mapping[str, Any]


@dataclass(frozen=True)
class Grid:
    """The result of replaying streams in every cell. Tables join on `cell` (its number) and `stream` (its id).

    Attributes:
        table: one line per cell and stream: cell, drafter, structure, gamma, nodes_max, stream, category, tokens,
            rounds, offered (depth, summed), nodes (summed), accepted, rejections, proposals (rounds that had one).
        histograms: one line per cell, stream, histogram, strategy and value that occurred, with its `count` of rounds:
            "accepted": accepted tokens, of the rounds that the strategy won ("" where nothing was accepted);
            "rank": rank of the accepted node's source, of the rounds that the strategy won;
            "allotment": rows that the strategy had in a round.
    """

    table: pd.DataFrame
    histograms: pd.DataFrame


def replay_grid(
    cells: Sequence[Cell],
    streams: Sequence[Stream],
    *,
    target: Target,
    max_new_tokens: int,
    workers: int,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Grid:
    """Replay every stream in every cell, shared out over `workers` processes; the same tables for any number of them.

    Drafters are built once, here: one that needs the target's model makes its tables now, and the processes get what it
    made.

    Args:
        target: what drafters are built beside; not used for anything else.
        progress: called with the tokens replayed so far and those to replay.
    Raises:
        UsageError: a drafter that does not look tokens up, or a structure that it cannot fill.
    """
    built = _built(cells, target)
    work = [(cell, index) for cell in range(len(cells)) for index in range(len(streams))]
    total, done = len(cells) * sum(_size(stream, max_new_tokens) for stream in streams), 0
    lines: list[dict[str, Any]] = []
    counts: list[dict[str, Any]] = []
    bench = _Bench(built, tuple(streams), max_new_tokens)
    for (cell, index), (row, histogram) in zip(work, _results(bench, work, workers), strict=True):
        drafter, structure = built[cell]
        stream = streams[index]
        key = {"cell": cell, "stream": stream.id, "category": stream.category}
        about = {"drafter": cells[cell].drafter["name"], "structure": structure.name}
        lines.append({**key, **about, "gamma": structure.gamma, "nodes_max": structure.nodes, **row})
        counts += [
            {**key, "histogram": name, "strategy": strategy, "value": value, "count": count}
            for (name, strategy, value), count in histogram.items()
        ]
        done += row["tokens"]
        progress(done, total)
    columns = ["cell", "stream", "category", "histogram", "strategy", "value", "count"]
    return Grid(pd.DataFrame(lines), pd.DataFrame(counts, columns=columns))


def _size(stream: Stream, max_new_tokens: int) -> int:
    return min(len(stream.generated), max_new_tokens)


def _built(cells: Sequence[Cell], target: Target) -> list[tuple[Lookup, Structure]]:
    """Build the drafter and the structure of each cell; cells with equal drafters share one."""
    made: dict[str, Lookup] = {}
    pairs = []
    for cell in cells:
        key = repr(sorted(cell.drafter.items()))
        if key not in made:
            drafter = drafters.build(cell.drafter, target=target)
            if not isinstance(drafter, Lookup):
                raise UsageError(
                    f"Bad value drafter={cell.drafter['name']}: recorded text is replayed by drafters that look tokens "
                    "up, not by models."
                )
            if drafter.capabilities.replay == "calling":
                raise UsageError(
                    f"Bad value drafter={cell.drafter['name']}: it learns from the target's calls, which recorded text "
                    "has not; decode with python -m specdec.run, or compare it with +experiment=all_drafters."
                )
            made[key] = drafter
        structure = structures.build(cell.structure)
        if structure.name not in made[key].capabilities.fills:
            raise UsageError(
                f"Bad value structure={structure.name}: drafter {cell.drafter['name']!r} fills only "
                f"{', '.join(sorted(made[key].capabilities.fills))}."
            )
        pairs.append((made[key], structure))
    return pairs


@dataclass(frozen=True)
class _Bench:
    """Everything that a process needs to replay any stream in any cell."""

    built: Sequence[tuple[Lookup, Structure]]
    streams: Sequence[Stream]
    max_new_tokens: int

    def replay(self, item: tuple[int, int]) -> tuple[dict[str, int], Counter[tuple[str, str, int]]]:
        """Return the line and the histograms of one (cell, stream)."""
        cell, index = item
        rounds = replay_stream(*self.built[cell], self.streams[index], self.max_new_tokens, allotment=True)
        row = {
            "tokens": rounds.tokens,
            "rounds": len(rounds),
            "offered": sum(rounds.offered),
            "nodes": sum(rounds.nodes),
            "accepted": sum(rounds.accepted),
            "rejections": sum(rounds.rejected),
            "proposals": sum(1 for nodes in rounds.nodes if nodes),
        }
        histogram: Counter[tuple[str, str, int]] = Counter()
        for accepted, strategy, rank in zip(rounds.accepted, rounds.strategy, rounds.rank, strict=True):
            histogram["accepted", strategy if accepted else NONE, accepted] += 1
            if accepted:
                histogram["rank", strategy, rank] += 1
        for allotment in rounds.allotment:
            for strategy, count in allotment.items():
                histogram["allotment", strategy, count] += 1
        return row, histogram


_bench: _Bench | None = None  # of a worker process


def _begin(bench: _Bench) -> None:
    global _bench
    _bench = bench


def _replay(item: tuple[int, int]) -> tuple[dict[str, int], Counter[tuple[str, str, int]]]:
    assert _bench is not None
    return _bench.replay(item)


def _results(
    bench: _Bench, work: Sequence[tuple[int, int]], workers: int
) -> Iterator[tuple[dict[str, int], Counter[tuple[str, str, int]]]]:
    """Yield one result per item of `work`, in its order."""
    workers = min(workers, len(work))
    if workers <= 1:
        yield from map(bench.replay, work)
        return
    # Not forked: a process that has threads, as torch's, cannot be copied safely.
    with multiprocessing.get_context("spawn").Pool(workers, _begin, (bench,)) as pool:
        yield from pool.imap(_replay, work, chunksize=max(1, min(64, len(work) // (4 * workers))))
