"""The files of a run's results. Finished prompts go to disk as they come, in part-files that are written whole; at the
end the part-files are joined. A kill loses at most the prompt being decoded and those of the second before.
"""

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specdec.analysis.read.facts import STATUS_FILE, RunStatus, Standing
from specdec.errors import UsageError
from specdec.folder.rounds_table import SCHEMA
from specdec.text.writing import read_json, write_json

GENERATIONS, ROUNDS, PARTS = "generations.jsonl", "rounds.parquet", "rounds"

PromptKey = tuple[int, str]
"""The repeat and the id of a prompt: what is decoded, and resumed, as a whole."""

_KEPT_S = 1.0  # results of the last so many seconds are written together: prompts that take milliseconds share a file
_PART = 1 << 15  # rounds in a part-file
_BLOCK = 1 << 18  # rounds of the table that are in memory together
_UNFINISHED = 1 << 62  # place of a prompt that not every method has decoded: behind all others


@dataclass(frozen=True)
class DonePrompt:
    """A prompt that every method has decoded, with all that the analysis needs of it beside rounds and generations."""

    prompt: str  # with `repeat` its key; a later turn is a prompt of its own
    repeat: int
    place: int  # in the order of the run, which the tables keep whoever decoded the prompt, and when
    baseline: tuple[int, ...]  # tokens of the baseline's output, which later turns continue and drafters remember
    collected: Mapping[str, Any]  # the prompt's share of what a session collects: the values of a `Collected`
    clock: float | None = None  # reading of a simulated clock at the end of the prompt; None where time is measured
    rounds: int = 0  # lines in the table of rounds, and in that of generations; `ResultsFolder.append` counts them
    generations: int = 0

    @property
    def key(self) -> PromptKey:
        return self.repeat, self.prompt


Kept = Mapping[PromptKey, DonePrompt]
"""Prompts that earlier sittings of a run have finished."""


def finished_prompts(folder: Path) -> Kept:
    """Return the prompts that all writers have finished in a folder, in the order of the run."""
    prompts = [done for part in _parts(folder) for done in _prompts_of(part) if done.place < _UNFINISHED]
    return {done.key: done for done in sorted(prompts, key=lambda done: done.place)}


def drop_unreadable(folder: Path) -> list[str]:
    """Delete part-files that were not written to their end, or that the disk has damaged; return the names of the
    damaged ones. Nobody else may write to the folder meanwhile.
    """
    damaged = []
    for part in _parts(folder):
        try:
            pq.read_table(part)
        except (ValueError, OSError):  # pyarrow's own errors are among them
            damaged.append(part)
    for path in (*(folder / PARTS).glob("*.tmp"), *damaged):
        path.unlink()
    return [part.name for part in damaged]


def _parts(folder: Path) -> list[Path]:
    return sorted((folder / PARTS).glob("part-*.parquet"))


def _lines(part: Path, name: str) -> list[bytes]:
    """Return the JSON lines that a part-file carries beside its rounds: of its `prompts`, or of their `generations`."""
    metadata = pq.ParquetFile(part, thrift_string_size_limit=1 << 30).metadata.metadata or {}
    if name.encode() not in metadata:
        raise UsageError(f"{part} is of an earlier version of specdec, which alone can go on with it or report it.")
    return metadata[name.encode()].splitlines(keepends=True)


def _prompts_of(part: Path) -> Iterator[DonePrompt]:
    """Yield the prompts of a part-file, in the order of their rounds."""
    for line in _lines(part, "prompts"):
        values = json.loads(line)
        yield DonePrompt(**{**values, "baseline": tuple(values["baseline"])})


def _lines_in_order(parts: Sequence[Path]) -> list[tuple[Path, slice, slice]]:
    """Return for each prompt of the joined tables, in order, the part-file with the lines of its rounds and of its
    generations. A prompt that failed stands last, and not at all where it was decoded again.
    """
    placed: dict[PromptKey, tuple[int, tuple[Path, slice, slice]]] = {}
    for part in parts:
        rounds = generations = 0
        for done in _prompts_of(part):
            lines = part, slice(rounds, rounds + done.rounds), slice(generations, generations + done.generations)
            if done.key not in placed or placed[done.key][0] == _UNFINISHED:
                placed[done.key] = done.place, lines
            rounds, generations = lines[1].stop, lines[2].stop
    return [lines for _, lines in sorted(placed.values(), key=lambda item: item[0])]


class ResultsFolder:
    """The run's output folder.

    A part-file (`rounds/part-00000.parquet`) has the rounds of some prompts as its table, and the lines of their
    generations and of the prompts themselves (`DonePrompt`) in its metadata. It gets its name when it is whole, so that
    a run that goes on keeps what `finished_prompts` lists. The part-files stay until the run is finished: the joined
    tables can be made of them at any time.

    Several processes may write to one folder. Each gets a `writer` of its own (letters and digits; "" for the one that
    is alone, or that joins the others), and so files of its own (`rounds/part-W-00000.parquet`); each gives `append`
    the place of its prompts in the order of the whole run. When all have called `close`, one process calls `compact`.
    """

    def __init__(self, folder: Path, writer: str = "") -> None:
        self.folder = folder
        (folder / PARTS).mkdir(parents=True, exist_ok=True)
        self._stem = f"part-{writer}-" if writer else "part-"
        numbers = (part.stem.removeprefix(self._stem) for part in _parts(folder))
        self._written = max((int(number) + 1 for number in numbers if number.isdigit()), default=0)
        self._rounds: list[pa.Table] = []
        self._size = 0  # rounds that wait
        self._prompts: list[str] = []
        self._generations: list[str] = []
        self._flushed = time.monotonic() - _KEPT_S

    def append(
        self, rounds: Sequence[pa.Table], generations: Sequence[Mapping[str, Any]], done: DonePrompt | None = None
    ) -> None:
        """Write a part-file of a prompt: its rounds, the lines of its generations, and that it is `done`, if every
        method has decoded it and all that is collected of it is there. Less than a second after the last prompt it
        waits for the next ones.
        """
        if not generations:
            return  # the prompt failed before any method had begun
        lines = [_json_line(line) for line in generations]
        if done is None:
            done = DonePrompt(generations[0]["prompt"], generations[0]["repeat"], _UNFINISHED, (), {})
        size = sum(map(len, rounds))
        self._rounds += rounds
        self._size += size
        self._prompts.append(_json_line(vars(replace(done, rounds=size, generations=len(lines)))))
        self._generations += lines
        if time.monotonic() - self._flushed > _KEPT_S or self._size > _PART:
            self.close()

    def close(self) -> None:
        """Write what still waits for the next prompts."""
        if not self._rounds:
            return
        part = self.folder / PARTS / f"{self._stem}{self._written:05d}.parquet"
        with pq.ParquetWriter(part.with_suffix(".tmp"), SCHEMA, store_schema=False) as writer:
            writer.write_table(pa.concat_tables(self._rounds))
            beside = {"prompts": self._prompts, "generations": self._generations}
            writer.add_key_value_metadata({name: "".join(lines) for name, lines in beside.items()})
        part.with_suffix(".tmp").replace(part)
        self._rounds, self._prompts, self._generations, self._size = [], [], [], 0
        self._written += 1
        self._flushed = time.monotonic()

    def compact(self) -> None:
        """Join the part-files of all writers into `rounds.parquet`, and their generations into `generations.jsonl`, in
        the order of the prompts; nothing where no prompt was decoded.

        In a long table the rounds of an arm have row groups of their own: who counts them reads one arm at a time.
        """
        self.close()
        prompts = _lines_in_order(_parts(self.folder))
        if not prompts:
            return
        last_use = {part: number for number, (part, _, _) in enumerate(prompts)}
        opened: dict[Path, tuple[pa.Table, list[bytes]]] = {}
        joined, generations = self.folder / "rounds.tmp", self.folder / "generations.tmp"
        with pq.ParquetWriter(joined, SCHEMA) as writer, generations.open("wb") as stream:
            waiting: list[pa.Table] = []
            size = 0
            for number, (part, rounds, texts) in enumerate(prompts):
                if part not in opened:
                    opened[part] = pq.read_table(part, schema=SCHEMA), _lines(part, "generations")
                table, lines = opened[part]
                stream.writelines(lines[texts])
                waiting.append(table[rounds])
                size += len(waiting[-1])
                if last_use[part] == number:
                    del opened[part]
                if size > _BLOCK:
                    block = pa.concat_tables(waiting)
                    arms = block.group_by(["method", "gamma"], use_threads=False).aggregate([]).to_pylist()
                    for arm in arms:
                        own = (pc.equal(block[column], arm[column]) for column in ("method", "gamma"))
                        writer.write_table(block.filter(pc.and_(*own)))
                    waiting, size = [], 0
            if waiting:
                writer.write_table(pa.concat_tables(waiting))
        generations.replace(self.folder / GENERATIONS)
        joined.replace(self.folder / ROUNDS)
        pa.default_memory_pool().release_unused()

    def finish(self) -> None:
        """Drop the part-files, from which an unfinished run goes on."""
        shutil.rmtree(self.folder / PARTS, ignore_errors=True)

    def write_table(self, name: str, lines: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
        """Write `name`.parquet."""
        import pandas as pd

        pd.DataFrame(list(lines), columns=list(columns)).to_parquet(self.folder / f"{name}.parquet", index=False)

    def write_status(self, status: Standing, sentence: str, prompts_done: int, prompts: int, left_out: int = 0) -> None:
        """Replace `status.json` by the run's present standing (`RunStatus` explains the values)."""
        self.write_json(STATUS_FILE, asdict(RunStatus(status, sentence, prompts_done, prompts, left_out)))

    def write_json(self, name: str, value: Any) -> None:
        """Replace the file `name` by a value as JSON, in one step: a reader finds the old file or the new one."""
        write_json(self.folder / name, value)

    def read_json(self, name: str) -> dict[str, Any]:
        """Read what `write_json` wrote, in this sitting or an earlier one; empty if there is no such file."""
        return read_json(self.folder / name) or {}


def _json_line(values: Mapping[str, Any]) -> str:
    return json.dumps(dict(values), default=lambda number: number.item()) + "\n"  # a number of numpy
