"""Load points, a line for each number of requests in flight, and gauges: what load tests of every format become."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import nan
from pathlib import Path
from typing import Any

import pandas as pd

from specdec.errors import UsageError
from specdec.text.lines import filled_lines, printable

Values = Mapping[str, Any]
COLUMNS = (  # of a table of load points; all but the first two are numbers, NaN where the file does not say them
    "server",  # the name of a run: what was served, of which the points are loads
    "model",  # the target's id; "" where the file has none
    "in_flight",  # requests at once
    "throughput",  # output tokens per second, of all requests
    "step_ms",  # a round of decoding: the time between two messages of a stream
    "ttft_ms",  # median time to the first token; its mean where every request is known
    "ttft_p99_ms",
    "prompt_tokens",  # mean
    "output_tokens",  # mean
    "requests",  # completed
    "pooled",  # tokens per round, the target's own included, over all rounds
    "by_request",  # the same, its mean over requests
    "drafts",  # rounds that drafted
    "accepted_share",  # accepted over offered draft tokens
    "gamma",  # draft tokens offered per round
)


@dataclass(frozen=True)
class Gauges:
    """The gauges of a vLLM server's pages: the most requests that ran, those that waited then, the share of the KV
    cache in use, and its slots; NaN where a page lacks them.
    """

    running: float = nan
    waiting: float = nan
    usage: float = nan
    slots: float = nan

    @property
    def full(self) -> bool:
        """True where requests waited while the KV cache was used up: memory, and not a limit of sequences."""
        return self.usage >= 0.95 and self.waiting > 0


@dataclass(frozen=True)
class LoadFile:
    """A file's text, and its JSON objects (one, a list of them, or one a line), each behind what messages call it."""

    path: Path
    text: str
    documents: Sequence[tuple[str, Values]]

    @classmethod
    def of(cls, path: Path) -> "LoadFile":
        """Read a file. UsageError for one that is empty or cannot be read."""
        text = b"".join(raw for _, raw in filled_lines(path, f"The file {path}")).decode("utf-8", "replace")
        whole: Any = []
        with suppress(ValueError, RecursionError):
            whole = [json.loads(line) for line in text.splitlines() if line.strip()]
        with suppress(ValueError, RecursionError):
            whole = json.loads(text)
        values = [value for value in (whole if isinstance(whole, list) else [whole]) if isinstance(value, dict)]
        runs = [f"{path}, run {number}" if len(values) > 1 else str(path) for number in range(1, len(values) + 1)]
        return cls(path, text, [*zip(runs, values, strict=True)])


def server_and_path(given: str) -> tuple[str, str]:
    """Return server and path of `NAME=FILE`, or "" and the path, which may have an equals sign if it exists."""
    name, sign, path = given.partition("=")
    return (name, path) if sign and "/" not in name and not Path(given).exists() else ("", given)


def number_of(where: str, values: Values, *keys: str) -> float:
    """Return the first of `keys` (a dot leads below) in `values`, else NaN. UsageError for no number of 0 or more."""
    for key in keys:
        value: Any = values
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is None or value == "":
            continue
        try:
            number = float(value[0] if isinstance(value, list) and value else value)
        except (TypeError, ValueError, OverflowError):
            raise UsageError(f"{where}: {key} is {printable(str(value))!r:.40}, and a number was expected.") from None
        if number < 0 or number == float("inf"):
            raise UsageError(
                f"{where}: {key} is {number:g}, which no clock and no counter gives: measure that point again, or "
                "leave it out."
            )
        return number
    return nan


def load_table(path: Path, points: Sequence[Values]) -> pd.DataFrame:
    """Return points as a table of `COLUMNS`. UsageError where requests in flight or throughput are unknown."""
    for point in points:
        for name, lacking in (("in_flight", "requests in flight"), ("throughput", "output tokens per second")):
            if not point[name] > 0:
                raise UsageError(f"{point['where']} does not say the {lacking}: no factor can be known without it.")
    table = pd.DataFrame(points).reindex(columns=list(COLUMNS)).astype(dict.fromkeys(COLUMNS[2:], float))
    for name, otherwise in (("server", path.stem), ("model", "")):
        table[name] = [printable(str(point.get(name) or otherwise)) for point in points]
    return table
