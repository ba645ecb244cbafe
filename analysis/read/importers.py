"""The importers by the name that `--import` takes: one file of `read/foreign` for each format, found by its name.

Such a file has `read(path, choices)`, which gives one data set per drafter of a file and raises UsageError, naming file
and line, for content of another form; and `recognises(value)`, which is asked about the values of the first lines,
about the whole file as one JSON document, and about its text. `auto` tells the kind from what the file says.
"""

import json
import pkgutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from specdec.errors import UsageError
from specdec.text.lines import file_lines

from . import foreign
from .imported import ImportChoices, Imported

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
        f"{path} is of no kind that its content tells: name one, --import KIND {path} ({', '.join(_FORMATS)})."
    )
