"""The importers by the name that `--import` takes: one file of `read/foreign` for each format, found by its name.

Such a file has `read(path, choices)`, which gives one data set per drafter of a file and raises UsageError, naming file
and line, for content of another form; and `recognises(value)`, which is asked about the values of the first lines,
about the whole file as one JSON document, and about its text. `auto` tells the kind from what the file says.
"""

import json
import pkgutil
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from specdec.errors import UsageError
from specdec.text.lines import file_lines

from . import foreign
from .imported import ImportChoices, Imported, write_folder
from .runs import Run, open_folder

HEAD = 1 << 20  # bytes that are looked at to tell a format
FIRST = 50  # lines of them that may be the first of their kind; those before are bad ones
_FORMATS = {
    module.name: import_module(f"{foreign.__name__}.{module.name}") for module in pkgutil.iter_modules(foreign.__path__)
}


def auto(path: Path, choices: ImportChoices) -> list[Imported]:
    """Return the data sets of a file whose kind is told from its content. UsageError if it is of none."""
    return IMPORTERS[kind_of(path)](path, choices)


IMPORTERS: dict[str, Callable[[Path, ImportChoices], list[Imported]]] = {
    **{kind: module.read for kind, module in _FORMATS.items()},
    "auto": auto,
}


def convert(
    files: Sequence[tuple[str, str]], choices: ImportChoices, folder: Path, baseline: pd.DataFrame | None = None
) -> list[Run]:
    """Write a run folder below `folder` for each data set of some files, and return their runs. UsageError if a file
    cannot be read; then nothing is written.

    Args:
        files: kind and path of each.
        baseline: plain decoding of the same prompts, as `spec_bench.spec_bench_times` reads it.
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
