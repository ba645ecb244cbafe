"""The lines of a generation in the two tables of a run: its rounds, and the generation itself. Knows no statistics."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import nan
from typing import Any

import numpy as np
import pyarrow as pa

from specdec.clock import Clock
from specdec.disturbance import disturbed
from specdec.records import Generation, Round, Source
from specdec.replay.walk import RoundColumns
from specdec.targets.replay import Price, Sizes


@dataclass(frozen=True)
class GenerationKey:
    """The columns that tell generations apart, in both tables."""

    cell: str
    method: str
    gamma: int
    repeat: int
    prompt: str
    category: str


_TEXTS, _COUNTS = pa.string(), pa.int64()
SCHEMA = pa.schema(
    {
        **dict.fromkeys(("cell", "method"), _TEXTS),
        **dict.fromkeys(("gamma", "repeat"), _COUNTS),
        **dict.fromkeys(("prompt", "category"), _TEXTS),
        **dict.fromkeys(("round", "context", "offered_nodes", "offered", "accepted", "committed"), _COUNTS),
        "rejected": pa.bool_(),
        "truncation": _TEXTS,
        "tokens_left": _COUNTS,
        "source": _TEXTS,
        "rank": _COUNTS,
        **dict.fromkeys(("beta", "tv", "departure"), pa.list_(pa.float64())),
        **dict.fromkeys(
            ("otherwise", "draft_s", "verify_s", "accept_s", "commit_s", "round_s", "waited_s", "restore_s"),
            pa.float64(),
        ),
        "batch": _COUNTS,
        "disturbed": pa.bool_(),
    }
)


@dataclass(frozen=True, eq=False)
class WalkedRounds(Sequence[Round]):
    """The rounds of one generation, kept in columns."""

    taken: RoundColumns
    prompt: int  # its tokens
    finish: str  # "end_token" or "limit", whichever ends the text
    price: Price  # of drafts and calls
    chain: bool  # the structure offers one candidate for each position
    began: float  # reading of the clock after the prefill

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


def round_table(key: GenerationKey, generation: Generation, clock: Clock) -> pa.Table:
    """Return the rounds of one generation, a line each; the device must be synchronised, as seconds are computed."""
    rounds = generation.rounds
    columns: dict[str, Any]
    if isinstance(rounds, WalkedRounds):
        columns = rounds.columns()
    else:  # sequences that were decoded together share the seconds of a step evenly: rounds add up to the total
        committed = [len(item.committed) for item in rounds]
        departures = [item.departure for item in rounds]
        # The source of a round is that of its last accepted node, or of the first offered one where none was accepted.
        sources = [item.source[(0, *item.acceptance.path)[-1]] if item.source else Source("", 0) for item in rounds]
        lists = pa.list_(pa.float64())
        waited = [clock.watch.waited(*item.marks.watched) for item in rounds]
        restored = [(item.marks.accepted, item.marks.restored, item.batch) for item in rounds]
        columns = {
            "context": [item.context for item in rounds],
            "offered_nodes": [len(item.draft_tokens) for item in rounds],
            "offered": [item.tree.depth for item in rounds],
            "accepted": [item.accepted for item in rounds],
            "committed": committed,
            "rejected": [item.rejected for item in rounds],
            "truncation": [item.truncation for item in rounds],
            "tokens_left": np.cumsum(committed[::-1], dtype=np.int64)[::-1],
            "source": [each.strategy for each in sources],
            "rank": [each.rank for each in sources],
            "beta": pa.array([item.beta for item in rounds], type=lists),
            "tv": pa.array([item.tv for item in rounds], type=lists),
            "departure": pa.array([() if each is None else each.tv for each in departures], type=lists),
            "otherwise": [nan if each is None or each.otherwise is None else each.otherwise for each in departures],
            "draft_s": [clock.seconds(each.marks.start, each.marks.drafted) / each.batch for each in rounds],
            "verify_s": [clock.seconds(each.marks.drafted, each.marks.verified) / each.batch for each in rounds],
            "accept_s": [clock.seconds(each.marks.verified, each.marks.accepted) / each.batch for each in rounds],
            "commit_s": [clock.seconds(each.marks.accepted, each.marks.committed) / each.batch for each in rounds],
            "round_s": [clock.seconds(each.marks.start, each.marks.committed) / each.batch for each in rounds],
            "waited_s": [lost / each.batch for lost, each in zip(waited, rounds, strict=True)],
            "restore_s": [None if end is None else clock.seconds(start, end) / batch for start, end, batch in restored],
            "batch": [each.batch for each in rounds],
            "disturbed": disturbed_rounds(rounds, clock),
        }
    columns |= {name: pa.repeat(value, len(rounds)) for name, value in vars(key).items()}
    columns["round"] = np.arange(len(rounds))
    arrays = {name: values if isinstance(values, pa.Array) else pa.array(values) for name, values in columns.items()}
    return pa.table({field.name: arrays[field.name].cast(field.type) for field in SCHEMA}, schema=SCHEMA)


def disturbed_rounds(rounds: Sequence[Round], clock: Clock) -> list[bool]:
    """Return for each round whether other work on the machine disturbed it; the device must be synchronised."""
    marks = [item.marks for item in rounds]
    return [disturbed(clock.watch.waited(*each.watched), clock.seconds(each.start, each.committed)) for each in marks]


def generation_line(
    key: GenerationKey, generation: Generation, clock: Clock, text: str, flagged: bool
) -> dict[str, Any]:
    """Return one line of `generations.jsonl`; a replay target reads its token lists."""
    rounds = generation.rounds
    if isinstance(rounds, WalkedRounds):
        decode_s = float(np.diff(rounds.marks[::3]).sum())
    else:
        decode_s = sum(clock.seconds(item.marks.start, item.marks.committed) / item.batch for item in rounds)
    return {
        **vars(key),
        "tokens": len(generation.tokens),
        "rounds": len(rounds),
        "prefill_s": clock.seconds(*generation.prefill),
        "prefill_disturbed": disturbed(clock.watch.waited(*generation.watched), clock.seconds(*generation.prefill)),
        "decode_s": decode_s,
        "finish": generation.finish,
        "flagged": flagged,
        "prompt_token_ids": list(generation.prompt),
        "generated_token_ids": list(generation.tokens),
        "text": text,
    }
