"""What a run says of itself for MLflow, in two files of its folder: the record, and its metrics line by line.

Both are on disk before a store hears of them, so a store that is down costs nothing: `upload` reads them later.
Knows names, values and times; nothing of MLflow. Times are in milliseconds since 1970.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from specdec.text.writing import read_json, write_json

RECORD, METRICS = "tracking.json", "tracking_metrics.jsonl"
JOURNAL = "tracking.jsonl"  # of earlier versions, which kept both in lines

Point = tuple[str, int, float]  # name, step and value of a metric


@dataclass(frozen=True)
class LoggedPoints:
    """Metrics that were logged together: a line of the file."""

    points: Sequence[Point]
    time: int
    line: str | None = None  # name of the curve whose own run gets them; None for the run itself


@dataclass
class RunRecord:
    """A run as a store is to know it, beside the files of its folder."""

    folder: Path
    id: str  # no other run has it; a store's run is found by it
    store: str  # where the run was meant to be logged; "" for nowhere
    experiment: str
    name: str
    params: dict[str, str]
    tags: dict[str, str]
    parent: str | None  # `id` of the sweep's record
    began: int
    dataset: dict[str, str] | None = None
    files: int = 0  # when the folder's files were last ready to be uploaded; 0 for never
    status: str | None = None  # how the run ended; None while it is open
    ended: int | None = None  # and when
    discarded: bool = False  # the run's work never began, so that no store should know it
    logged: list[LoggedPoints] = field(default_factory=list)  # the metrics

    def __post_init__(self) -> None:
        self._last = {(each.line, name, step): value for each in self.logged for name, step, value in each.points}

    @classmethod
    def read(cls, folder: Path) -> "RunRecord | None":
        """Return the record in a folder; None if there is none."""
        values = read_json(folder / RECORD)
        if values is None:
            return _of_journal(folder)
        return cls(folder, **values, logged=[LoggedPoints(**line) for line in _whole_lines(folder / METRICS)])

    def begin(self) -> None:
        """Write the record in place of an earlier one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in (METRICS, JOURNAL):
            (self.folder / name).unlink(missing_ok=True)
        self.save()

    def save(self) -> None:
        """Replace the record on disk; metrics are there already."""
        if not (self.folder / METRICS).is_file():  # a record of an earlier version has them elsewhere
            self._append(self.logged)
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        del values["folder"], values["logged"]
        write_json(self.folder / RECORD, values)

    def log(self, points: Sequence[Point], line: str | None = None) -> None:
        """Add metrics, on disk before this returns. Points that were logged with the same value are left out, so that a
        resumed run doubles none.
        """
        fresh = [point for point in points if self._last.get((line, point[0], point[1])) != point[2]]
        if not fresh:
            return
        self._last |= {(line, name, step): value for name, step, value in fresh}
        self.logged.append(LoggedPoints(fresh, now_ms(), line))
        self._append(self.logged[-1:])

    @property
    def lines(self) -> list[str]:
        """Names of the curves that have runs of their own, in the order in which they came."""
        return list(dict.fromkeys(each.line for each in self.logged if each.line is not None))

    def names(self, of_lines: bool) -> set[str]:
        """Return the names of the metrics of the run itself, or of its lines."""
        return {name for line, name, _ in self._last if (line is not None) == of_lines}

    def _append(self, logged: Sequence[LoggedPoints]) -> None:
        """Add lines to the file of metrics, behind what a kill may have cut short there."""
        with (self.folder / METRICS).open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.writelines(json.dumps(vars(each)).encode() + b"\n" for each in logged)


def now_ms() -> int:
    return int(time.time() * 1000)


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file of lines, without what a kill cut short."""
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            values = json.loads(line)
        except ValueError:
            continue
        if isinstance(values, dict):
            yield values


def _of_journal(folder: Path) -> RunRecord | None:
    """Return the record of a run of an earlier version; None if there is none, or a kill cut its first line short."""
    entries = list(_whole_lines(folder / JOURNAL))
    if not entries:
        return None
    begin = entries[0]["begin"]
    parent = (begin["parent"] or {}).get("id")
    record = RunRecord(folder, **{**begin, "parent": parent}, began=entries[0]["time"])
    for entry in entries[1:]:
        record.tags |= {**entry.get("tags", {}), **entry.get("again", {})}
        record.dataset = entry.get("dataset", record.dataset)
        if "metrics" in entry:
            record.logged.append(LoggedPoints(entry["metrics"], entry["time"], entry.get("line")))
        elif "artifacts" in entry:
            record.files = entry["time"]
        elif "again" in entry or "end" in entry:
            record.status, record.ended = entry.get("end"), entry["time"] if "end" in entry else None
        elif "discard" in entry:
            record.discarded = True
    return record
