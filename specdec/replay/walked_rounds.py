"""The rounds of a walk along recorded text, as columns for the rounds table."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from specdec.records import Round
from specdec.replay.walk import RoundColumns
from specdec.timing.simulated import Price, Sizes


@dataclass(frozen=True, eq=False)
class WalkedRounds(Sequence[Round]):
    """The rounds of one generation, kept in columns.

    Attributes:
        prompt: its tokens.
        finish: "end_token" or "limit", whichever ends the text.
        price: what drafts and calls cost.
        chain: the structure offers one candidate for each position.
        began: reading of the clock after the prefill.
    """

    taken: RoundColumns
    prompt: int
    finish: str
    price: Price
    chain: bool
    began: float

    def __len__(self) -> int:
        return len(self.taken)

    def __getitem__(self, index: Any) -> Any:
        raise TypeError("the rounds of a walk are kept in columns: none is made on its own")

    @cached_property
    def marks(self) -> np.ndarray:
        """Readings [3 R + 1] of the clock: before the first round, then after draft, call and commit of each."""
        rounds, price = self.taken, self.price
        context = self.prompt - 1 + rounds.position.astype(np.int64)
        sizes = Sizes(*(size.astype(np.int64) for size in (rounds.nodes, rounds.offered, rounds.leaves)))
        steps = np.empty((len(self), 3))
        steps[:, 0] = price.draft_s(sizes, context)
        steps[:, 1] = price.verify_s(sizes, context)
        steps[:, 2] = price.cost.overhead_s
        # Added up one by one, as a clock does: readings are those of the loop to the last bit.
        return np.cumsum(np.concatenate([[self.began], steps.ravel()]))

    def columns(self) -> dict[str, pa.Array | np.ndarray]:
        """Return the columns of the rounds table that differ between rounds of a run's files."""
        rounds, size, marks = self.taken, len(self), self.marks
        last = np.zeros(size, dtype=np.int8)
        last[-1] = 1
        tested = (rounds.accepted + rounds.rejected if self.chain else np.zeros(size)).astype(np.int32)
        ends = np.cumsum(tested)
        overlap = np.ones(int(ends[-1]))
        if self.chain:
            overlap[ends[rounds.rejected] - 1] = 0.0  # the token that was rejected, the last one tested
        none = pa.ListArray.from_arrays(pa.array(np.zeros(size + 1, dtype=np.int32)), pa.array(np.empty(0)))
        return {
            "context": rounds.position + self.prompt,
            "offered_nodes": rounds.nodes,
            "offered": rounds.offered,
            "accepted": rounds.accepted,
            "committed": rounds.committed,
            "rejected": rounds.rejected,
            "truncation": pa.DictionaryArray.from_arrays(pa.array(last), pa.array(["", self.finish])),
            "tokens_left": rounds.tokens - rounds.position,
            "source": pa.DictionaryArray.from_arrays(pa.array(rounds.strategy), pa.array(rounds.strategies)),
            "rank": rounds.rank,
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
            "waited_s": np.zeros(size),
            "restore_s": pa.nulls(size),
            "disturbed": np.zeros(size, dtype=bool),
        }
