"""Results go to disk first: a part-file of rounds and lines of generations as prompts are done, compacted at the end.

A kill loses at most the prompt being decoded and those of the second before. Knows the columns of the rounds table;
knows no statistics. What a kill left is read by `recovery`.
"""

import json
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specdec.analysis.read.facts import STATUS_FILE, RunStatus, Standing
from specdec.clock import Clock
from specdec.records import Generation, Round
from specdec.replay.walked_rounds import WalkedRounds
from specdec.text.writing import write_atomically

GENERATIONS, ROUNDS, DONE = "generations.jsonl", "rounds.parquet", "part-done.jsonl"

PromptKey = tuple[int, str]
"""The repeat and the id of a prompt: what is decoded, and resumed, as a whole."""


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


@dataclass(frozen=True)
class DonePrompt:
    """One line of `part-done.jsonl`: a prompt that every method has decoded, with all that the analysis needs of it.

    Attributes:
        prompt, repeat: key of the prompt; a later turn is a prompt of its own.
        place: of the prompt in the order of the run, which the tables keep whoever decoded it, and when.
        baseline: tokens of the baseline's output, which later turns continue and drafters remember.
        collected: the prompt's share of what a session collects (`Collected.as_dict`).
        clock: reading of a simulated clock at the end of the prompt; None where time is measured.
        rounds, generations: lines of the two tables; `ResultsFolder.append` counts them.
    """

    prompt: str
    repeat: int
    place: int
    baseline: tuple[int, ...]
    collected: Mapping[str, Any]
    clock: float | None = None
    rounds: int = 0
    generations: int = 0

    @property
    def key(self) -> PromptKey:
        return self.repeat, self.prompt


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file that a run wrote; None if there is none, or no whole one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _json_line(values: Mapping[str, Any]) -> str:
    return json.dumps(dict(values), default=_plain_number) + "\n"


def _plain_number(value: Any) -> Any:
    """Return a number of numpy as one of Python."""
    return value.item()


def read_done(folder: Path) -> tuple[list[DonePrompt], int]:
    """Return the prompts that all writers have finished in a folder, in the order of the run, each once, and the number
    of lines that a kill cut off.
    """
    found: dict[PromptKey, DonePrompt] = {}
    torn = 0
    for path in sorted(folder.glob("part-done*.jsonl")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                values = json.loads(line)
                done = DonePrompt(**{**values, "baseline": tuple(values["baseline"])})
            except (ValueError, TypeError, KeyError):
                torn += 1
                continue
            found.setdefault(done.key, done)
    return sorted(found.values(), key=lambda done: done.place), torn


def _keys(rounds: pa.Table) -> list[PromptKey]:
    """Return the key of the prompt of every round."""
    return list(zip(rounds["repeat"].to_pylist(), rounds["prompt"].to_pylist(), strict=True))


def prompt_keys(part: Path) -> list[PromptKey]:
    """Return the keys of the prompts of a part-file, in their order."""
    rounds = pq.read_table(part, columns=["repeat", "prompt"])
    groups = rounds.group_by(["repeat", "prompt"], use_threads=False).aggregate([])
    return _keys(groups)


def join_lines(folder: Path, name: str, others: str, places: Mapping[PromptKey, int]) -> None:
    """Join the JSON lines of several writers into the file `name`, in the order of their prompts; one that is in order
    stays as it is.

    Args:
        others: pattern of the other writers' files.
        places: of the prompts; a line of another prompt stands last. A line that stands in two files is kept once.
    """
    files = [path for path in (folder / name, *sorted(folder.glob(others))) if path.is_file()]
    lines = [line for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    order = []
    for line in lines:
        values = json.loads(line)
        order.append(places.get((values["repeat"], values["prompt"]), len(places)))
    if len(files) > 1 or order != sorted(order):
        ordered = [line for _, line in sorted(zip(order, lines, strict=True), key=lambda pair: pair[0])]
        write_atomically(folder / name, "".join(f"{line}\n" for line in dict.fromkeys(ordered)))
        for path in files:
            if path.name != name:
                path.unlink()


class ResultsFolder:
    """The run's output folder.

    A prompt is on disk in three steps, of which the last one counts: its rounds are in a part-file, the lines of its
    generations stand behind those of earlier prompts, and its line in `part-done.jsonl` says that both are whole. What
    a kill leaves of a prompt without that line is dropped by `recovered_results`, and decoded again.

    Several processes may write to one folder. Each gets a `writer` of its own, and so files of its own
    (`rounds/part-W-00000.parquet`, `part-generations-W.jsonl`, `part-done-W.jsonl`); each gives `append` the place of
    its prompts in the order of the whole run. When all have called `close`, one process calls `compact`, which joins
    what all have written in the order of the places; nothing is lost if it is killed on the way.
    """

    def __init__(self, folder: Path, writer: str = "") -> None:
        """
        Args:
            writer: name of this process among several that write to the folder: letters and digits; "" for the one
                that is alone, or that joins the others.
        """
        self.folder = folder
        self._parts = folder / "rounds"
        self._parts.mkdir(parents=True, exist_ok=True)
        self._writer = f"-{writer}" if writer else ""
        stem = f"part{self._writer}-"
        numbers = (each.stem.removeprefix(stem) for each in self._parts.glob(f"{stem}*.parquet"))
        self._written = max((int(number) + 1 for number in numbers if number.isdigit()), default=0)
        self._rounds: list[pa.Table] = []
        self._generations: list[str] = []
        self._done: list[str] = []
        self._flushed = time.monotonic() - _KEPT_S

    def append(
        self, rounds: Iterable[pa.Table], generations: Iterable[Mapping[str, Any]], done: DonePrompt | None = None
    ) -> None:
        """Write a part-file of a prompt's rounds, the lines of its generations, and that it is done. Less than a second
        after the last prompt they wait for the next ones.

        Args:
            done: the prompt, if every method has decoded it and all that is collected of it is there.
        """
        tables, lines = list(rounds), [_json_line(line) for line in generations]
        self._rounds += tables
        self._generations += lines
        if done is not None:
            counted = replace(done, rounds=sum(map(len, tables)), generations=len(lines))
            self._done.append(_json_line(vars(counted)))
        if time.monotonic() - self._flushed > _KEPT_S or sum(map(len, self._rounds)) > _PART:
            self.close()

    def close(self) -> None:
        """Write what still waits for the next prompts."""
        if not self._rounds:
            return
        part = self._parts / f"part{self._writer}-{self._written:05d}.parquet"
        pq.write_table(pa.concat_tables(self._rounds), part.with_suffix(".tmp"))
        part.with_suffix(".tmp").replace(part)
        own = f"part-generations{self._writer}.jsonl" if self._writer else GENERATIONS
        for name, lines in ((own, self._generations), (f"part-done{self._writer}.jsonl", self._done)):
            with (self.folder / name).open("a", encoding="utf-8") as stream:
                stream.writelines(lines)
        self._rounds, self._generations, self._done = [], [], []
        self._written += 1
        self._flushed = time.monotonic()

    def compact(self) -> None:
        """Join the part-files of all writers into `rounds.parquet`, and their generations into `generations.jsonl`, in
        the order of the prompts, and drop them; nothing where no prompt was done.

        In a long table the rounds of an arm have row groups of their own: who counts them reads one arm at a time.
        `part-done.jsonl` stays until the run is finished.
        """
        self.close()
        parts = sorted(self._parts.glob("part-*.parquet"))
        if not parts:
            return
        places = {done.key: done.place for done in read_done(self.folder)[0]}
        join_lines(self.folder, GENERATIONS, "part-generations-*.jsonl", places)
        join_lines(self.folder, DONE, "part-done-*.jsonl", places)
        tables: Iterable[pa.Table] = map(pq.read_table, parts)
        order = [places.get(key, len(places)) for part in parts for key in prompt_keys(part)] if places else []
        if order != sorted(order):
            rounds = pa.concat_tables(tables)
            tables = [rounds.take(np.argsort([places.get(key, len(places)) for key in _keys(rounds)], kind="stable"))]
        whole = self.folder / "rounds.tmp"
        with pq.ParquetWriter(whole, _SCHEMA) as writer:
            waiting: list[pa.Table] = []
            for table in tables:
                waiting.append(table)
                if sum(map(len, waiting)) > _BLOCK:
                    for arm in _by_arm(pa.concat_tables(waiting)):
                        writer.write_table(arm)
                    waiting = []
            if waiting:
                writer.write_table(pa.concat_tables(waiting))
        whole.replace(self.folder / ROUNDS)
        for part in parts:
            part.unlink()
        shutil.rmtree(self._parts)  # with what a kill left of a part-file
        pa.default_memory_pool().release_unused()

    def finish(self) -> None:
        """Drop the files that only serve to resume a run."""
        for path in self.folder.glob("part-*.jsonl"):
            path.unlink()

    def write_table(self, name: str, lines: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
        """Write `name`.parquet."""
        import pandas as pd

        pd.DataFrame(list(lines), columns=list(columns)).to_parquet(self.folder / f"{name}.parquet", index=False)

    def write_status(self, status: Standing, sentence: str, prompts_done: int, prompts: int, left_out: int = 0) -> None:
        """Replace `status.json` by the run's present standing (`RunStatus` explains the values), in one step: a reader
        finds the old file or the new one, never a part of it.
        """
        self.write_json(STATUS_FILE, asdict(RunStatus(status, sentence, prompts_done, prompts, left_out)))

    def write_json(self, name: str, value: Any) -> None:
        """Replace the file `name` by a value as JSON, in one step."""
        path = self.folder / name
        path.with_suffix(".tmp").write_text(json.dumps(value, indent=1, default=str) + "\n", encoding="utf-8")
        path.with_suffix(".tmp").replace(path)
