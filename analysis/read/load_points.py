"""Load points, a line for each number of requests in flight, and gauges: what load tests of every format become; and
their run folder, which has no rounds: points, gauges, and what was said of the servers.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from math import nan
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from specdec.errors import UsageError
from specdec.text.lines import filled_lines, printable

from .facts import LOAD, LOAD_FOLDER, PLAN_FILE

POINTS = "loads.parquet"
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


@dataclass(frozen=True)
class ServerFacts:
    """Facts that no load test records, by the server's name; "" stands for every speculative server."""

    gamma: Mapping[str, float] = field(default_factory=dict)  # draft tokens per round
    slots: Mapping[str, float] = field(default_factory=dict)  # of the KV cache, with the drafter; plain: by its name
    held: Mapping[str, float] = field(default_factory=dict)  # slots that a request holds
    state: Mapping[str, float] = field(default_factory=dict)  # slots of one copy of a recurrent state (`held_slots`)
    most_running: Mapping[str, float] = field(default_factory=dict)  # requests that ran at most

    def of(self, name: str, server: str) -> float:
        """Return a fact about a server, NaN where nobody said it."""
        values: Mapping[str, float] = getattr(self, name)
        return values.get(server, values.get("", nan))


@dataclass(frozen=True)
class LoadTests:
    """Load points (`COLUMNS`), gauges of servers, and what was said of them."""

    points: pd.DataFrame
    gauges: tuple[Gauges, ...]
    facts: ServerFacts

    def write(self, folder: Path, sources: Sequence[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        gauges = [{name: value for name, value in asdict(gauge).items() if value == value} for gauge in self.gauges]
        plan = {"gauges": gauges, "facts": asdict(self.facts)}
        config = {"import": {"kind": LOAD, "source": [*sources]}}
        self.points[list(COLUMNS)].to_parquet(folder / POINTS)
        (folder / PLAN_FILE).write_text(json.dumps(plan, indent=1), encoding="utf-8")
        (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


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


def read_folder(folder: Path) -> LoadTests:
    """Return the load tests of a run folder. UsageError where it is none of load tests, or damaged."""
    if not (folder / POINTS).is_file():
        raise UsageError(
            f"{folder} is no folder of load tests (no {POINTS} in it): `python -m specdec.explain FILE... --out DIR` "
            f"makes DIR/{LOAD_FOLDER}."
        )
    try:
        points = pd.read_parquet(folder / POINTS)[list(COLUMNS)]
        kept = json.loads((folder / PLAN_FILE).read_text(encoding="utf-8"))
        return LoadTests(points, tuple(Gauges(**gauge) for gauge in kept["gauges"]), ServerFacts(**kept["facts"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{folder} holds what no load test writes ({type(error).__name__}): write it again.") from None
