"""Reads what a run that was killed has left on disk: the prompts that are whole, and the files without the rest.

A prompt is whole if its rounds, its generations and its line in `part-done.jsonl` are all there. Everything else is
dropped, so that the run goes on as if it had been interrupted between two prompts. A kill in the middle of this leaves
every whole prompt where the next attempt finds it.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from specdec.analysis.findings import counted
from specdec.experiment.results import DONE, GENERATIONS, ROUNDS, DonePrompt, PromptKey, read_done
from specdec.text.writing import write_atomically


@dataclass(frozen=True)
class Recovered:
    """Prompts that were found whole in a folder, and what was dropped.

    Attributes:
        prompts: those that are whole, in the order of the run.
        dropped: what was dropped, in words; empty where the run ended between two prompts.
    """

    prompts: dict[PromptKey, DonePrompt]
    dropped: tuple[str, ...]


def recovered_results(folder: Path) -> Recovered:
    """Keep the prompts of a run that are whole, drop the rest from its files, and return what was found.

    Afterwards the folder has the files of one writer. Nobody else may write to it meanwhile.
    """
    done, torn_done = read_done(folder)
    wanted = {each.key: each for each in done}
    sources, unreadable = _round_files(folder)
    whole, stray = _whole_rounds(sources, wanted)
    lines, torn = _generation_lines(folder)
    kept = {
        key: each for key, each in wanted.items() if key in whole and len(lines.get(key, ())) >= each.generations > 0
    }
    lost = {key for key in {*wanted, *lines, *stray} if key not in kept}
    dropped = [
        *([f"{counted(torn, 'broken line')} of {GENERATIONS}"] if torn else []),
        *([f"{counted(torn_done, 'broken line')} of {DONE}"] if torn_done else []),
        *(f"{path.name}, which cannot be read" for path in unreadable),
        *([f"the results of {counted(len(lost), 'unfinished prompt')}"] if lost else []),
    ]
    _rewrite(folder, sources, {key: whole[key] for key in kept})
    _write_lines(folder, GENERATIONS, [line for key, each in kept.items() for line in lines[key][: each.generations]])
    _write_lines(folder, DONE, [json.dumps(vars(each)) for each in kept.values()])
    for path in (*folder.glob("part-*.jsonl"), *unreadable):
        if path.name != DONE:
            path.unlink()
    return Recovered(kept, tuple(dropped))


def _round_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the files of rounds that can be read, and those that cannot."""
    found: list[Path] = []
    unreadable: list[Path] = []
    # The joined table first: after a kill while the part-files were deleted, both hold the same rounds.
    for path in (folder / ROUNDS, *sorted((folder / "rounds").glob("part-*.parquet"))):
        if path.is_file():
            try:
                pq.read_table(path, columns=["repeat", "prompt"])
            except (ValueError, OSError, KeyError):  # pyarrow's own are the first two
                unreadable.append(path)
            else:
                found.append(path)
    return found, unreadable


def _whole_rounds(
    sources: list[Path], wanted: dict[PromptKey, DonePrompt]
) -> tuple[dict[PromptKey, Path], set[PromptKey]]:
    """Return the file that holds all rounds of a prompt, by prompt, and the prompts that have other rounds."""
    whole: dict[PromptKey, Path] = {}
    stray: set[PromptKey] = set()
    for path in sources:
        rounds = pq.read_table(path, columns=["repeat", "prompt"])
        counted = rounds.group_by(["repeat", "prompt"], use_threads=False).aggregate([([], "count_all")]).to_pylist()
        for line in counted:
            key = (line["repeat"], line["prompt"])
            if key in wanted and wanted[key].rounds == line["count_all"]:
                whole.setdefault(key, path)
            else:
                stray.add(key)
    return whole, stray - set(whole)


def _generation_lines(folder: Path) -> tuple[dict[PromptKey, list[str]], int]:
    """Return the lines of the generations by prompt, each method and gamma once, and the number of broken lines."""
    found: dict[PromptKey, dict[Any, str]] = defaultdict(dict)
    torn = 0
    for path in (folder / GENERATIONS, *sorted(folder.glob("part-generations-*.jsonl"))):
        if path.is_file():
            for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
                try:
                    values = json.loads(line)
                    key = (values["repeat"], values["prompt"])
                    found[key].setdefault((values["method"], values["gamma"]), line)
                except (ValueError, TypeError, KeyError):
                    torn += 1
    return {key: list(lines.values()) for key, lines in found.items()}, torn


def _rewrite(folder: Path, sources: list[Path], whole: dict[PromptKey, Path]) -> None:
    """Replace all files of rounds by one part-file of the prompts that are whole; none where there is no such prompt.

    Files that hold nothing else stay as they are.
    """
    parts = folder / "rounds"
    parts.mkdir(exist_ok=True)
    for path in parts.glob("*.tmp"):
        path.unlink()
    held = Counter(whole.values())
    plain = all(path.parent == parts and path.name.count("-") == 1 for path in sources)
    if plain and all(held[path] == len(_prompts_of(path)) for path in sources):
        return
    joined = parts / "part-00000.parquet"
    if whole:
        with pq.ParquetWriter(joined.with_suffix(".tmp"), pq.read_schema(next(iter(whole.values())))) as writer:
            for table in _filtered(sources, whole):
                writer.write_table(table)
        joined.with_suffix(".tmp").replace(joined)
    for path in sources:
        if path != joined or not whole:
            path.unlink()


def _prompts_of(path: Path) -> set[PromptKey]:
    rounds = pq.read_table(path, columns=["repeat", "prompt"])
    return set(zip(rounds["repeat"].to_pylist(), rounds["prompt"].to_pylist(), strict=True))


def _filtered(sources: list[Path], whole: dict[PromptKey, Path]) -> Iterator[pa.Table]:
    """Yield the rounds of each file that are to stay."""
    for path in sources:
        keys = [key for key, holder in whole.items() if holder == path]
        if keys:
            table = pq.read_table(path)
            wanted = {f"{repeat}/{prompt}" for repeat, prompt in keys}
            names = pc.binary_join_element_wise(pc.cast(table["repeat"], pa.string()), table["prompt"], "/")
            yield table.filter(pc.is_in(names, value_set=pa.array(sorted(wanted))))


def _write_lines(folder: Path, name: str, lines: list[str]) -> None:
    """Replace a file of JSON lines, if its content is not these lines already."""
    path, text = folder / name, "".join(f"{line}\n" for line in lines)
    if path.is_file() and path.read_bytes() == text.encode():
        return
    if text or path.is_file():
        write_atomically(path, text)
