"""The rounds of a walk along recorded text: columns for the rounds table, and single rounds where drafts were kept."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np
import pyarrow as pa

from specdec.records import Acceptance, Marks, Round
from specdec.replay.shared_walk import RoundColumns
from specdec.timing.simulated import Price, Sizes


@dataclass(frozen=True)
class Writing:
    """A recorded text as one method writes it.

    Attributes:
        prompt, text: tokens before it and of it, up to the limit and the first end token.
        finish: "end_token" or "limit", whichever ends the text.
        price: what drafts and calls cost.
        chain: the structure offers one candidate for each position.
        began: reading of the clock after the prefill.
    """

    prompt: tuple[int, ...]
    text: tuple[int, ...]
    finish: str
    price: Price
    chain: bool
    began: float


class WalkedRounds(Sequence[Round]):
    """The rounds of one generation, kept in columns; single rounds can be asked for where the drafts were kept."""

    def __init__(self, found: RoundColumns, writing: Writing) -> None:
        self._found, self._writing = found, writing

    def __len__(self) -> int:
        return len(self._found)

    @overload
    def __getitem__(self, index: int) -> Round: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Round]: ...

    def __getitem__(self, index: int | slice) -> Round | Sequence[Round]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        return self._round(range(len(self))[index])

    @cached_property
    def marks(self) -> np.ndarray:
        """Readings [3 R + 1] of the clock: before the first round, then after draft, call and commit of each."""
        found, price = self._found, self._writing.price
        context = len(self._writing.prompt) - 1 + found.position.astype(np.int64)
        sizes = Sizes(*(each.astype(np.int64) for each in (found.nodes, found.offered, found.leaves)))
        steps = np.empty((len(self), 3))
        steps[:, 0] = price.draft_s(sizes, context)
        steps[:, 1] = price.verify_s(sizes, context)
        steps[:, 2] = price.cost.overhead_s
        # Added up one by one, as a clock does: readings are those of the loop to the last bit.
        return np.cumsum(np.concatenate([[self._writing.began], steps.ravel()]))

    def columns(self) -> dict[str, pa.Array | np.ndarray]:
        """Return the columns of the rounds table that differ between rounds of a run's files."""
        found, writing = self._found, self._writing
        size = len(self)
        marks, committed = self.marks, found.committed
        last = np.zeros(size, dtype=np.int8)
        last[-1] = 1
        tested = (found.accepted + found.rejected if writing.chain else np.zeros(size)).astype(np.int32)
        ends = np.cumsum(tested)
        overlap = np.ones(int(ends[-1]))
        if writing.chain:
            overlap[ends[found.rejected] - 1] = 0.0  # the token that was rejected, the last one tested
        none = pa.ListArray.from_arrays(pa.array(np.zeros(size + 1, dtype=np.int32)), pa.array(np.empty(0)))
        return {
            "context": found.position + len(writing.prompt),
            "offered_nodes": found.nodes,
            "offered": found.offered,
            "accepted": found.accepted,
            "committed": committed,
            "rejected": found.rejected,
            "truncation": pa.DictionaryArray.from_arrays(pa.array(last), pa.array(["", writing.finish])),
            "tokens_left": found.tokens - found.position,
            "source": pa.DictionaryArray.from_arrays(pa.array(found.strategy), pa.array(found.strategies)),
            "rank": found.rank,
            "beta": pa.ListArray.from_arrays(pa.array(np.concatenate([[0], ends]).astype(np.int32)), pa.array(overlap)),
            "tv": none,
            "departure": none,
            "otherwise": np.full(size, np.nan),
            "batch": np.ones(size, dtype=np.int64),
            "draft_s": marks[1::3] - marks[:-1:3],
            "verify_s": marks[2::3] - marks[1::3],
            "accept_s": np.zeros(size),
            "commit_s": marks[3::3] - marks[2::3],
            "round_s": marks[3::3] - marks[:-1:3],
        }

    def _round(self, place: int) -> Round:
        found, writing = self._found, self._writing
        assert found.proposals is not None
        tokens, tree, source = found.proposals[place]
        position, accepted = int(found.position[place]), int(found.accepted[place])
        committed = writing.text[position : position + int(found.committed[place])]
        path: list[int] = []
        for token in committed[:accepted]:
            path.append(next(node for node in tree.children[path[-1] + 1 if path else 0] if tokens[node] == token))
        rejected = bool(found.rejected[place])
        start, drafted, verified, done = self.marks[3 * place : 3 * place + 4].tolist()
        return Round(
            context=len(writing.prompt) + position,
            draft_tokens=tokens,
            tree=tree,
            source=source,
            acceptance=Acceptance(tuple(path), committed[-1], rejected, tokens),
            committed=committed,
            accepted=accepted,
            rejected=rejected,
            truncation=writing.finish if place == len(self) - 1 else "",
            beta=(1.0,) * accepted + (0.0,) * rejected if writing.chain else (),
            marks=Marks(start, drafted, verified, verified, done),
        )
