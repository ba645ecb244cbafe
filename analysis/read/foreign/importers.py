"""The importers by the name that `--import` takes; each takes (path, gamma) and options of its own."""

from collections.abc import Callable

from .accepted_lengths import accepted_lengths
from .imported import Imported
from .spec_bench import spec_bench
from .vllm import vllm

IMPORTERS: dict[str, Callable[..., Imported]] = {
    "accepted_lengths": accepted_lengths,
    "vllm": vllm,
    "spec_bench": spec_bench,
}
