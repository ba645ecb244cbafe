"""Counts how often a drafter's first, second, ... choice is the next token: token trees are built from these counts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch

from specdec.drafters.base import Drafter
from specdec.records import Request
from specdec.replay.walk import Led, TextReading, agreed
from specdec.structures import Structure, structures
from specdec.structures.tree import given
from specdec.targets.base import Target
from specdec.text.streams import Stream
from specdec.tree_building.lookup_filling import Proposal

Vector = tuple[float, ...]
RankPath = tuple[int, ...]


@dataclass(frozen=True)
class RankCounts:
    """Counts by level of drafts; the last entry is for that level and all deeper ones together."""

    tested: tuple[int, ...]  # drafts that came to the level: whose nodes above it agreed with the text
    hits: tuple[tuple[int, ...], ...]  # [ranks] those whose choice of each rank agreed at the level too

    def accuracy(self, depth: int) -> tuple[Vector, ...]:
        """Return a_{d,j} for d = 1 ... `depth`, for `theory.trees.best_tree`.

        One more draft than was seen, shared out evenly between the ranks and none of them, keeps every chance between
        0 and 1: how rare a rank is after few drafts is not known.
        """
        levels = tuple(
            tuple((count + 1 / (len(hits) + 1)) / (tested + 1) for count in hits)
            for tested, hits in zip(self.tested, self.hits, strict=True)
        )
        return (levels + levels[-1:] * depth)[:depth]

    def rows(self) -> list[dict[str, Any]]:
        """Return a line for each level and rank: level (from 1), rank, tested, hits."""
        return [
            {"level": level, "rank": rank, "tested": tested, "hits": count}
            for level, (tested, hits) in enumerate(zip(self.tested, self.hits, strict=True), 1)
            for rank, count in enumerate(hits)
        ]


def total(counts: Sequence[RankCounts]) -> RankCounts:
    """Add up counts with the same levels and ranks, at least one."""
    tested = tuple(sum(level) for level in zip(*(each.tested for each in counts), strict=True))
    levels = zip(*(each.hits for each in counts), strict=True)
    return RankCounts(tested, tuple(tuple(sum(rank) for rank in zip(*level, strict=True)) for level in levels))


@torch.inference_mode()
def rank_counts(
    drafter: Drafter,
    target: Target | None,
    streams: Sequence[Stream],
    max_new_tokens: int,
    ranks: int,
    depth: int,
    levels: int = 2,
) -> RankCounts:
    """Count over the rounds that greedy decoding of `streams` takes with the full tree of `ranks` children a node and
    `depth` levels, of which only the path that agrees with the text is drafted.

    Rounds and not positions: a draft begins right after a rejection, where the next token is hard. So many `levels` are
    counted apart, the last one with all that are deeper. The target is None for a drafter that reads nothing of it.
    """
    tested, hits = [0] * levels, [[0] * ranks for _ in range(levels)]
    for stream in streams:
        for path, most in rank_walk(drafter, target, stream, max_new_tokens, ranks, depth):
            for level in range(min(len(path) + 1, most)):
                tested[min(level, levels - 1)] += 1
            for level, rank in enumerate(path):
                hits[min(level, levels - 1)][rank] += 1
    return RankCounts(tuple(tested), tuple(map(tuple, hits)))


@torch.inference_mode()
def rank_walk(
    drafter: Drafter,
    target: Target | None,
    stream: Stream,
    max_new_tokens: int,
    ranks: int,
    depth: int,
    every: bool = False,
) -> Iterator[tuple[RankPath, int]]:
    """Yield the rank path at the begin of each round of the full tree, or at every position: the ranks of its next
    tokens, each behind those before it, while they are among the first `ranks` choices; and its greatest length.
    """
    limit = stream.limit(max_new_tokens)
    text = stream.generated[:limit]
    led = Led(drafter, None if target is None else TextReading(target))

    def propose(shape: Structure, position: int) -> Proposal:
        """Draft level by level, behind the nodes that are the text's."""
        ahead = text[position : position + shape.gamma]
        path: RankPath = ()
        while True:
            proposal = led.propose(along(path, ranks) if ahead else shape)
            further = _ranks(proposal, agreed(proposal.tree, proposal.tokens, ahead))
            if len(further) in (len(path), len(ahead)):
                return proposal
            path = further

    request = Request(stream.prompt, limit, reference=text)
    for _, position, proposal, nodes in led.steps(request, text, [along((0,) * (depth - 1), ranks)], every, propose):
        yield _ranks(proposal, nodes), min(depth, limit - position - 1, len(text) - position)


def _ranks(proposal: Proposal, path: Sequence[int]) -> RankPath:
    """Return the rank of each node of a path among its siblings."""
    children = proposal.tree.children
    return tuple(children[parent + 1].index(node) for parent, node in pairwise((-1, *path)))


@lru_cache(maxsize=256)
def along(path: tuple[int, ...], ranks: int) -> Structure:
    """`ranks` siblings at each level, where only the node whose rank `path` has goes on."""
    parents = [-1] * ranks
    for level, rank in enumerate(path):
        parents += [level * ranks + rank] * ranks
    return structures.build(given(parents))
