"""Counts how often a drafter's first, second, ... choice is the next token: token trees are built from these counts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch

from specdec.drafters.base import Drafter
from specdec.records import Draft, TextStart, chain_tree
from specdec.structures import Structure, structures
from specdec.structures.tree import given
from specdec.targets.base import Target
from specdec.text.streams import Stream
from specdec.theory.path_trees import RankPath
from specdec.tree_building.lookup_filling import Proposal

Vector = tuple[float, ...]


@dataclass(frozen=True)
class RankCounts:
    """Counts by level of drafts; the last entry is for that level and all deeper ones together.

    Attributes:
        tested: drafts that came to the level: whose nodes above it agreed with the text.
        hits: [ranks] those whose choice of each rank agreed at the level too.
    """

    tested: tuple[int, ...]
    hits: tuple[tuple[int, ...], ...]

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


class Proposer(Protocol):
    """Something that proposes along a text: a `Lookup`, or any other drafter as `Fed`."""

    def start(self, text: TextStart) -> None: ...

    def propose(self, structure: Structure) -> Proposal: ...

    def commit(self, tokens: Sequence[int]) -> None: ...


class Fed:
    """Feeds a text to a drafter. For one that reads hidden states the target evaluates the text in the same rounds, as
    in decoding.
    """

    def __init__(self, drafter: Drafter, target: Target) -> None:
        self._drafter, self._target = drafter, target

    def start(self, text: TextStart) -> None:
        if self._drafter.capabilities.reads_states:
            self._target.start(text)
        self._drafter.start(text, self._target.states)

    def propose(self, structure: Structure) -> Proposal:
        draft = self._drafter.draft(structure)
        return Proposal(tuple(draft.tokens.tolist()), draft.tree, draft.source)

    def commit(self, tokens: Sequence[int]) -> None:
        if self._drafter.capabilities.reads_states:
            # All but the last were accepted, the last is the next round's root.
            accepted = torch.tensor(tokens[:-1], dtype=torch.long, device=self._target.device)
            self._target.verify(Draft(accepted, chain_tree(len(accepted))))
            self._target.commit(range(len(accepted)), tokens[-1])
        self._drafter.commit(tokens, self._target.states)


@torch.inference_mode()
def rank_counts(
    drafter: Proposer, streams: Sequence[Stream], max_new_tokens: int, ranks: int, depth: int, levels: int = 2
) -> RankCounts:
    """Count over the rounds that greedy decoding of `streams` takes with the full tree of `ranks` children a node and
    `depth` levels, of which only the path that agrees with the text is drafted.

    Rounds and not positions: a draft begins right after a rejection, where the next token is hard.

    Args:
        levels: counted apart; the last one with all that are deeper.
    """
    tested, hits = [0] * levels, [[0] * ranks for _ in range(levels)]
    for stream in streams:
        for path, most in _walk(drafter, stream, max_new_tokens, ranks, depth):
            for level in range(min(len(path) + 1, most)):
                tested[min(level, levels - 1)] += 1
            for level, rank in enumerate(path):
                hits[min(level, levels - 1)][rank] += 1
    return RankCounts(tuple(tested), tuple(map(tuple, hits)))


@torch.inference_mode()
def rank_paths(drafter: Proposer, stream: Stream, max_new_tokens: int, ranks: int, depth: int) -> tuple[RankPath, ...]:
    """Return the rank path at every position of a text, for `theory.path_trees`: the ranks of its next tokens, each
    behind those before it, while they are among the first `ranks` choices; at most `depth`.

    Every position, because the tree to be found decides where rounds begin.
    """
    return tuple(path for path, _ in _walk(drafter, stream, max_new_tokens, ranks, depth, every=True))


def _walk(
    drafter: Proposer, stream: Stream, max_new_tokens: int, ranks: int, depth: int, every: bool = False
) -> Iterator[tuple[RankPath, int]]:
    """Yield the rank path and its greatest length at the begin of each round of the full tree, or at every position."""
    limit = stream.limit(max_new_tokens)
    text = stream.generated[:limit]
    capacity = len(stream.prompt) + limit + ranks * depth + 1
    drafter.start(TextStart(stream.prompt, capacity, reference=text))
    position = 0
    while position < len(text):
        # As in `generate`: nothing is offered beyond the last token that may be written.
        most = min(depth, limit - position - 1, len(text) - position)
        path: RankPath = ()
        while len(path) < most:
            rank = _rank(drafter.propose(along(path, ranks)), text[position : position + len(path) + 1])
            if rank is None:
                break
            path += (rank,)
        yield path, most
        begin, position = position, position + (1 if every else len(path) + 1)
        drafter.commit(text[begin:position])


def _rank(proposal: Proposal, text: Sequence[int]) -> int | None:
    """Return the rank of the last token of `text` among the siblings behind the tokens before it; None without it."""
    tokens, children = proposal.tokens, proposal.tree.children
    node, rank = -1, None
    for token in text:
        siblings = children[node + 1]
        rank = next((place for place, child in enumerate(siblings) if tokens[child] == token), None)
        if rank is None:
            return None
        node = siblings[rank]
    return rank


@lru_cache(maxsize=256)
def along(path: tuple[int, ...], ranks: int) -> Structure:
    """`ranks` siblings at each level, where only the node whose rank `path` has goes on."""
    parents = [-1] * ranks
    for level, rank in enumerate(path):
        parents += [level * ranks + rank] * ranks
    return structures.build(given(parents))
