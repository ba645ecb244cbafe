"""The importers by the name that `--import` takes; each gives one data set per drafter of a file. `auto` tells the kind
from what the file says.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specdec.errors import UsageError
from specdec.text.lines import file_lines

from . import accepted_lengths as lengths_of_rounds
from . import eagle_answers
from . import spec_bench as answers
from . import specforge as benchmarks
from . import vllm as requests
from . import vllm_prometheus as page
from .accepted_lengths import accepted_lengths
from .eagle_answers import eagle
from .imported import ImportChoices, Imported
from .spec_bench import spec_bench
from .specforge import specforge
from .vllm import vllm
from .vllm_prometheus import vllm_prometheus

HEAD = 1 << 20  # bytes that are looked at to tell a format
FIRST = 50  # lines of them that may be the first of their kind; those before are bad ones


def auto(path: Path, choices: ImportChoices) -> list[Imported]:
    """Return the data sets of a file whose kind is told from its content. UsageError if it is of none."""
    return IMPORTERS[kind_of(path)](path, choices)


IMPORTERS: dict[str, Callable[[Path, ImportChoices], list[Imported]]] = {
    "accepted_lengths": accepted_lengths,
    "vllm": vllm,
    "vllm_prometheus": vllm_prometheus,
    "spec_bench": spec_bench,
    "eagle": eagle,
    "specforge": specforge,
    "auto": auto,
}
OF_LINES: dict[str, Callable[[Any], bool]] = {  # kinds of JSON lines, told from the first value
    "spec_bench": answers.recognises,
    "eagle": eagle_answers.recognises,
    "vllm": requests.recognises,
    "accepted_lengths": lengths_of_rounds.recognises,
}


def kind_of(path: Path) -> str:
    """Return the kind of a file, from its first lines. UsageError if it cannot be read or is of none."""
    head: list[str] = []
    size = 0
    for number, raw in file_lines(path, f"The file {path}"):
        head.append(raw.decode("utf-8", "replace"))
        size += len(raw)
        for value in _values(head[-1]) if number <= FIRST else []:
            for kind, recognises in OF_LINES.items():
                if recognises(value):
                    return kind
        if size > HEAD:
            break
    whole = "".join(head)
    if page.recognises(whole):
        return "vllm_prometheus"
    if any(benchmarks.recognises(value) for value in _values(whole)):
        return "specforge"
    kinds = ", ".join(kind for kind in IMPORTERS if kind != "auto")
    raise UsageError(f"{path} is of no kind that its content tells: name one, --import KIND {path} ({kinds}).")


def _values(text: str) -> list[Any]:
    """Return the value of a JSON text in a list; an empty one if it is none."""
    try:
        return [json.loads(text)]
    except (ValueError, RecursionError):
        return []
