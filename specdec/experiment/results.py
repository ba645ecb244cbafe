"""Results go to disk first: a part-file of rounds and lines of generations as prompts are done, compacted at the end.

A kill loses at most the prompt being decoded and those of the second before. Knows the columns of the rounds table;
knows no statistics.
"""

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specdec.clock import Clock
from specdec.experiment.walking import WalkedRounds
from specdec.records import Generation, Round


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
_SCHEMA = pa.schema(
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
        **dict.fromkeys(("otherwise", "draft_s", "verify_s", "accept_s", "commit_s", "round_s"), pa.float64()),
        "batch": _COUNTS,
    }
)


def round_table(key: GenerationKey, generation: Generation, clock: Clock) -> pa.Table:
    """Return the rounds table of one generation, a line per round; seconds come from the clock's readings, so the
    device must be synchronised.
    """
    rounds = generation.rounds
    columns = rounds.columns() if isinstance(rounds, WalkedRounds) else _columns(rounds, clock)
    size = len(rounds)
    columns |= {name: pa.repeat(value, size) for name, value in vars(key).items()}
    columns["round"] = np.arange(size)
    return pa.table({field.name: _typed(columns[field.name], field.type) for field in _SCHEMA}, schema=_SCHEMA)


def _typed(values: Any, of: pa.DataType) -> pa.Array:
    array = values if isinstance(values, pa.Array) else pa.array(values)
    return array if array.type == of else array.cast(of)


def _columns(rounds: Sequence[Round], clock: Clock) -> dict[str, Any]:
    """Return the columns that differ between rounds, from rounds that were recorded one by one.

    Sequences that were decoded together share the seconds of a step evenly, so that rounds add up to the total.
    """
    committed = [len(item.committed) for item in rounds]
    departures = [item.departure for item in rounds]
    lists = pa.list_(pa.float64())
    return {
        "context": [item.context for item in rounds],
        "offered_nodes": [len(item.draft_tokens) for item in rounds],
        "offered": [item.tree.depth for item in rounds],
        "accepted": [item.accepted for item in rounds],
        "committed": committed,
        "rejected": [item.rejected for item in rounds],
        "truncation": [item.truncation for item in rounds],
        "tokens_left": np.cumsum(committed[::-1], dtype=np.int64)[::-1],
        "source": [_accepted_source(item).strategy if item.source else "" for item in rounds],
        "rank": [_accepted_source(item).rank if item.source else 0 for item in rounds],
        "beta": pa.array([item.beta for item in rounds], type=lists),
        "tv": pa.array([item.tv for item in rounds], type=lists),
        "departure": pa.array([() if each is None else each.tv for each in departures], type=lists),
        "otherwise": [nan if each is None or each.otherwise is None else each.otherwise for each in departures],
        "draft_s": [clock.seconds(each.marks.start, each.marks.drafted) / each.batch for each in rounds],
        "verify_s": [clock.seconds(each.marks.drafted, each.marks.verified) / each.batch for each in rounds],
        "accept_s": [clock.seconds(each.marks.verified, each.marks.accepted) / each.batch for each in rounds],
        "commit_s": [clock.seconds(each.marks.accepted, each.marks.committed) / each.batch for each in rounds],
        "round_s": [clock.seconds(each.marks.start, each.marks.committed) / each.batch for each in rounds],
        "batch": [each.batch for each in rounds],
    }


def _accepted_source(item: Round) -> Any:
    """Return the source of the last accepted node, or of the first offered one where none was accepted."""
    return item.source[item.acceptance.path[-1] if item.acceptance.path else 0]


def generation_line(
    key: GenerationKey, generation: Generation, clock: Clock, text: str, flagged: bool
) -> dict[str, Any]:
    """Return one line of `generations.jsonl`; a replay target reads its token lists."""
    return {
        **vars(key),
        "tokens": len(generation.tokens),
        "rounds": len(generation.rounds),
        "prefill_s": clock.seconds(*generation.prefill),
        "decode_s": _decode_s(generation, clock),
        "finish": generation.finish,
        "flagged": flagged,
        "prompt_token_ids": list(generation.prompt),
        "generated_token_ids": list(generation.tokens),
        "text": text,
    }


def _decode_s(generation: Generation, clock: Clock) -> float:
    rounds = generation.rounds
    if isinstance(rounds, WalkedRounds):
        return float(np.diff(rounds.marks[::3]).sum())
    return sum(clock.seconds(item.marks.start, item.marks.committed) / item.batch for item in rounds)


_KEPT_S = 1.0  # results of the last so many seconds are written together: prompts that take milliseconds share a file
_PART = 1 << 15  # rounds in a part-file
_BLOCK = 1 << 18  # rounds of the table that are in memory together


def _by_arm(rounds: pa.Table) -> Iterator[pa.Table]:
    """Yield the rounds of each method and gamma, in their order."""
    arms = rounds.group_by(["method", "gamma"], use_threads=False).aggregate([]).to_pylist()
    for arm in arms:
        yield rounds.filter(pc.and_(pc.equal(rounds["method"], arm["method"]), pc.equal(rounds["gamma"], arm["gamma"])))


class ResultsFolder:
    """The run's output folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._parts = folder / "rounds"
        self._parts.mkdir(parents=True, exist_ok=True)
        self._written = 0
        self._rounds: list[pa.Table] = []
        self._generations: list[str] = []
        self._flushed = time.monotonic() - _KEPT_S

    def append(self, rounds: Iterable[pa.Table], generations: Iterable[Mapping[str, Any]]) -> None:
        """Write a part-file of a prompt's rounds, and the lines of its generations. Less than a second after the last
        prompt they wait for the next ones.
        """
        self._rounds += rounds
        self._generations += [json.dumps(line) + "\n" for line in generations]
        if time.monotonic() - self._flushed > _KEPT_S or sum(map(len, self._rounds)) > _PART:
            self._flush()

    def _flush(self) -> None:
        if not self._rounds:
            return
        part = self._parts / f"part-{self._written:05d}.parquet"
        pq.write_table(pa.concat_tables(self._rounds), part.with_suffix(".tmp"))
        part.with_suffix(".tmp").replace(part)
        with (self.folder / "generations.jsonl").open("a", encoding="utf-8") as stream:
            stream.writelines(self._generations)
        self._rounds, self._generations = [], []
        self._written += 1
        self._flushed = time.monotonic()

    def compact(self) -> None:
        """Join the part-files into `rounds.parquet` and drop them; nothing where no prompt was done.

        In a long table the rounds of an arm have row groups of their own: who counts them reads one arm at a time.
        """
        self._flush()
        parts = sorted(self._parts.glob("part-*.parquet"))
        if not parts:
            return
        with pq.ParquetWriter(self.folder / "rounds.parquet", _SCHEMA) as writer:
            waiting: list[pa.Table] = []
            for part in parts:
                waiting.append(pq.read_table(part))
                if sum(map(len, waiting)) > _BLOCK:
                    for arm in _by_arm(pa.concat_tables(waiting)):
                        writer.write_table(arm)
                    waiting = []
            if waiting:
                writer.write_table(pa.concat_tables(waiting))
        for part in parts:
            part.unlink()
        self._parts.rmdir()
        pa.default_memory_pool().release_unused()

    def write_table(self, name: str, lines: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
        """Write `name`.parquet."""
        import pandas as pd

        pd.DataFrame(list(lines), columns=list(columns)).to_parquet(self.folder / f"{name}.parquet", index=False)

    def write_json(self, name: str, value: Any) -> None:
        path = self.folder / name
        path.with_suffix(".tmp").write_text(json.dumps(value, indent=1, default=str) + "\n", encoding="utf-8")
        path.with_suffix(".tmp").replace(path)
