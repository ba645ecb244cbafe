"""The importers by the name that `--import` takes: one file of `read/foreign` for each format, found by its name.

One that reads rounds has `read(path, choices)`, which gives one data set per drafter of a file and raises UsageError,
naming file and line, for content of another form; and `recognises(value)`, which is asked about the values of the first
lines, about the whole file as one JSON document, and about its text. One that reads load tests has `load_points(file)`,
which gives the points of a `LoadFile`, or gauges, and nothing of one of another kind; and `LOAD_FILES`, the words that
say what writes such files and how they begin. Where a format has both, `--import` takes its name for rounds.
"""

import json
import pkgutil
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from specdec.errors import UsageError
from specdec.text.lines import file_lines

from . import foreign
from .facts import LOAD
from .imported import ImportChoices, Imported, write_folder
from .load_points import Gauges, LoadFile, LoadTests, ServerFacts, load_table, read_folder, server_and_path
from .runs import Run, open_folder

HEAD = 1 << 20  # bytes that are looked at to tell a format
FIRST = 50  # lines of them that may be the first of their kind; those before are bad ones
_MODULES = {one.name: import_module(f"{foreign.__name__}.{one.name}") for one in pkgutil.iter_modules(foreign.__path__)}
_FORMATS = {kind: module for kind, module in _MODULES.items() if hasattr(module, "read")}
LOAD_FORMATS = {kind: module for kind, module in _MODULES.items() if hasattr(module, "load_points")}
IMPORTERS: dict[str, Callable[[Path, ImportChoices], list[Imported]]] = {
    **{kind: module.read for kind, module in _FORMATS.items()},
    "auto": lambda path, choices: IMPORTERS[kind_of(path)](path, choices),  # the kind is told from the content
}


def convert(
    files: Sequence[tuple[str, str]], choices: ImportChoices, folder: Path, baseline: pd.DataFrame | None = None
) -> list[Run]:
    """Write a run folder below `folder` for each data set of some files (kind, path), and return their runs. UsageError
    if one cannot be read; then nothing is written. baseline: plain decoding of the same prompts (`spec_bench_times`).
    """
    sources = [source for kind, file in files for source in IMPORTERS[kind](Path(file), choices)]
    runs: list[Run] = []
    for source in sources:
        name = re.sub(r"[^\w.,=-]+", "_", source.name)[:80]
        name = f"{len(runs)}_{name}" if any(run.name == name for run in runs) else name
        write_folder(source, folder / name, baseline)
        runs.append(open_folder(folder / name))
    return runs


def kind_of(path: Path) -> str:
    """Return the kind of a file, from its first lines. UsageError if it cannot be read or is of none."""

    def kind(value: Any) -> str | None:
        return next((name for name, module in _FORMATS.items() if module.recognises(value)), None)

    def parsed(text: str) -> str | None:
        try:
            return kind(json.loads(text))
        except (ValueError, RecursionError):
            return None

    head: list[str] = []
    size = 0
    for number, raw in file_lines(path, f"The file {path}"):
        head.append(raw.decode("utf-8", "replace"))
        if number <= FIRST and (known := parsed(head[-1])):
            return known
        size += len(raw)
        if size > HEAD:
            break
    whole = "".join(head)
    if known := kind(whole) or parsed(whole):
        return known
    raise UsageError(
        f"{path} is of no kind that its content tells: name one, --import KIND {path} ({', '.join(_FORMATS)}), "
        "or `python -m specdec.explain` where it is a load test."
    )


def is_load(given: str) -> bool:
    """Return whether a file, or the one in `NAME=FILE`, is a load test that no importer of rounds reads."""
    path = Path(server_and_path(given)[1])
    try:
        kind_of(path)
    except UsageError:
        with suppress(UsageError):
            read_loads(path)
            return True
    return False


def read_loads(path: Path, kind: str = LOAD) -> LoadTests:
    """Return the load points of a file, or gauges alone, in one format or ("load") any. UsageError for others."""
    file = LoadFile.of(path)
    tried = {name: module for name, module in LOAD_FORMATS.items() if kind in (LOAD, name)}
    read = {name: points for name, module in tried.items() if (points := module.load_points(file))}
    if not read:
        begins = "; ".join(module.LOAD_FILES for module in tried.values())
        known = "specdec.explain knows. What it knows" if kind == LOAD else f"--import {kind} reads. What it reads"
        raise UsageError(f"{path} is of no kind that {known} begins with {begins}")
    if len(read) > 1 and len(file.documents) < 2:
        raise UsageError(f"{path} is of several kinds: choose one with specdec.report --import {' or '.join(read)}.")
    gauges = tuple(made for made in read.values() if isinstance(made, Gauges))
    points = [point for made in read.values() if not isinstance(made, Gauges) for point in made]
    return LoadTests(load_table(path, points), gauges, ServerFacts())


def read_together(files: Sequence[tuple[str, str, str]], facts: ServerFacts) -> LoadTests:
    """Return the load tests of some files and folders (kind, as `read_loads` takes it; server, "" where the file names
    it; path). Of the servers, `facts` go before those of a folder. UsageError for what cannot be read, or gauges alone.
    """
    points: list[pd.DataFrame] = []
    gauges: list[Gauges] = []
    for kind, name, file in files:
        kept = kind == LOAD and Path(file).is_dir()
        tests = read_folder(Path(file)) if kept else read_loads(Path(file), kind)
        points += [tests.points.assign(server=name) if name else tests.points] if len(tests.points) else []
        gauges += tests.gauges
        said = {each: {**values, **getattr(facts, each)} for each, values in vars(tests.facts).items()}
        facts = replace(facts, **said)
    if not points:
        raise UsageError("A server's page alone has no load: give the results of a load generator beside it.")
    return LoadTests(pd.concat(points, ignore_index=True), tuple(gauges), facts)
