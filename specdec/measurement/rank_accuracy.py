"""How often a drafter's first, second, ... choice is the next token: what token trees are built from (THEORY 3)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from specdec.drafters.lookup import Lookup, Proposal
from specdec.streams import Stream
from specdec.structures import Structure
from specdec.structures.tree import TokenTree, TokenTreeConfig

Vector = tuple[float, ...]


@dataclass(frozen=True)
class RankCounts:
    """Counts at the first level of drafts, and at all later levels together.

    Attributes:
        tested: drafts that came to the level: whose nodes above it agreed with the text.
        hits: [ranks] those whose choice of each rank agreed at the level too.
    """

    tested: tuple[int, int]
    hits: tuple[tuple[int, ...], tuple[int, ...]]

    def accuracy(self, depth: int) -> tuple[Vector, ...]:
        """a_{d,j} for d = 1 ... `depth`, for `theory.trees.best_tree`.

        One more draft than was seen, shared out evenly between the ranks and none of them, keeps every chance between
        0 and 1: how rare a rank is after few drafts is not known.
        """
        first, later = (
            tuple((count + 1 / (len(hits) + 1)) / (tested + 1) for count in hits)
            for tested, hits in zip(self.tested, self.hits, strict=True)
        )
        return (first,) + (later,) * (depth - 1)

    def rows(self) -> list[dict[str, Any]]:
        """One for each level and rank: level ("first" or "later"), rank, tested, hits."""
        return [
            {"level": level, "rank": rank, "tested": tested, "hits": count}
            for level, tested, hits in zip(("first", "later"), self.tested, self.hits, strict=True)
            for rank, count in enumerate(hits)
        ]


def rank_counts(drafter: Lookup, streams: Sequence[Stream], max_new_tokens: int, ranks: int, depth: int) -> RankCounts:
    """The rounds that greedy decoding of `streams` takes with the full tree of `ranks` children a node and `depth`
    levels, of which only the path that agrees with the text is drafted.

    Rounds and not positions: a draft begins right after a rejection, where the next token is hard (THEORY 4.7).
    """
    tested, hits = [0, 0], [[0] * ranks, [0] * ranks]
    for stream in streams:
        limit = stream.limit(max_new_tokens)
        text = stream.generated[:limit]
        drafter.start(stream.prompt, len(stream.prompt) + limit + ranks * depth + 1, None, text)
        position = 0
        while position < len(text):
            path: tuple[int, ...] = ()
            # As in `generate`: nothing is offered beyond the last token that may be written.
            while len(path) < min(depth, limit - position - 1, len(text) - position):
                proposal = drafter.propose(_along(path, ranks))
                rank = _rank(proposal, text[position : position + len(path) + 1])
                tested[bool(path)] += 1
                if rank is None:
                    break
                hits[bool(path)][rank] += 1
                path += (rank,)
            begin, position = position, position + len(path) + 1
            drafter.commit(text[begin:position])
    return RankCounts((tested[0], tested[1]), (tuple(hits[0]), tuple(hits[1])))


def _rank(proposal: Proposal, text: Sequence[int]) -> int | None:
    """Rank of the last token of `text` among the siblings that follow the tokens before it; None if it is not there."""
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
def _along(path: tuple[int, ...], ranks: int) -> Structure:
    """`ranks` siblings at each level, where only the node whose rank `path` has goes on."""
    parents = [-1] * ranks
    for level, rank in enumerate(path):
        parents += [level * ranks + rank] * ranks
    config = TokenTreeConfig(
        name="tree", file=None, parents=parents, accuracy=None, nodes=len(parents), depth=len(path) + 1
    )
    return TokenTree(config)
