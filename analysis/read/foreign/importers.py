"""The importers by the name that `--import` takes; each gives one data set per drafter of a file."""

from collections.abc import Callable
from pathlib import Path

from .accepted_lengths import accepted_lengths
from .imported import Choices, Imported
from .spec_bench import spec_bench
from .vllm import vllm

IMPORTERS: dict[str, Callable[[Path, Choices], list[Imported]]] = {
    "accepted_lengths": accepted_lengths,
    "vllm": vllm,
    "spec_bench": spec_bench,
}
