"""The run folder of load tests, without rounds: their points, the gauges, and what was said of the servers."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import nan
from pathlib import Path

import pandas as pd
import yaml

from specdec.errors import UsageError

from .facts import LOAD, LOAD_FOLDER, PLAN_FILE
from .importers import read_loads
from .load_points import COLUMNS, Gauges

POINTS = "loads.parquet"


@dataclass(frozen=True)
class ServerFacts:
    """Facts that no load test records, by the server's name; "" stands for every speculative server."""

    gamma: Mapping[str, float] = field(default_factory=dict)  # draft tokens per round
    # slots of the KV cache, with the drafter loaded; those of the plain server have its name
    slots: Mapping[str, float] = field(default_factory=dict)
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
        """Write the run folder, whole."""
        folder.mkdir(parents=True, exist_ok=True)
        gauges = [{name: value for name, value in asdict(gauge).items() if value == value} for gauge in self.gauges]
        plan = {"gauges": gauges, "facts": asdict(self.facts)}
        config = {"import": {"kind": LOAD, "source": [*sources]}}
        self.points[list(COLUMNS)].to_parquet(folder / POINTS)
        (folder / PLAN_FILE).write_text(json.dumps(plan, indent=1), encoding="utf-8")
        (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")


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
        gauges = tuple(Gauges(**gauge) for gauge in kept["gauges"])
        return LoadTests(points, gauges, ServerFacts(**kept["facts"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{folder} holds what no load test writes ({type(error).__name__}): write it again.") from None


def read_together(files: Sequence[tuple[str, str, str]], facts: ServerFacts) -> LoadTests:
    """Return the load tests of some files and folders (kind, as `read_loads` takes it; server, "" where the file names
    it; path). Of the servers, `facts` go before those of a folder. UsageError for what cannot be read, and for gauges
    alone.
    """
    points: list[pd.DataFrame] = []
    gauges: list[Gauges] = []
    for kind, name, file in files:
        read: pd.DataFrame | Gauges
        if kind == LOAD and Path(file).is_dir():
            kept = read_folder(Path(file))
            read = kept.points
            gauges += kept.gauges
            said = {each: {**values, **getattr(facts, each)} for each, values in vars(kept.facts).items()}
            facts = replace(facts, **said)
        else:
            read = read_loads(Path(file), kind)
        if isinstance(read, Gauges):
            gauges.append(read)
        else:
            points.append(read.assign(server=name) if name else read)
    if not points:
        raise UsageError("A server's page alone has no load: give the results of a load generator beside it.")
    return LoadTests(pd.concat(points, ignore_index=True), tuple(gauges), facts)
