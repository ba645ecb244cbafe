"""The record of what a run logs, line by line in its own folder (`tracking.jsonl`). MLflow is a mirror of it.

A line is on disk before a store hears of it, so a store that is down costs nothing: `specdec.sync` reads the lines
later. Knows names, values and times; nothing of MLflow.
"""

import json
import os
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

JOURNAL = "tracking.jsonl"
Entry = dict[str, Any]
"""One line: a dict with the key of its kind (`begin`, `again`, `dataset`, `metrics`, `tags`, `artifacts`, `end`,
`discard`), and `time`, in milliseconds since 1970. Times are those of the run, also where a store
hears of it days later."""


class Journal:
    """The lines of one run. Without a folder they are kept in memory only."""

    def __init__(self, folder: Path | None) -> None:
        """Read the lines that are there, without the rest of a line that a kill cut short."""
        self.folder = folder
        self._torn, self._whole = False, 0
        self.entries: list[Entry] = []
        self._last: dict[tuple[str | None, str, int], float] = {}
        if folder is None or not self._path.is_file():
            return
        content = self._path.read_bytes()
        self._whole, self.entries = _readable(content)
        self._torn = self._whole < len(content)
        for entry in self.entries:
            self._remember(entry)

    @property
    def _path(self) -> Path:
        assert self.folder is not None
        return self.folder / JOURNAL

    @property
    def header(self) -> dict[str, Any]:
        """The first line's content: id, store, experiment, name, params, tags, parent; empty before `begin`."""
        return dict(self.entries[0]["begin"]) if self.entries else {}

    @property
    def status(self) -> str | None:
        """The status that the run ended with; None while it is open."""
        for entry in reversed(self.entries):
            if "end" in entry or "again" in entry:
                return entry.get("end")
        return None

    @property
    def discarded(self) -> bool:
        """True if the run's work never began, so that no store should know it."""
        return bool(self.entries) and "discard" in self.entries[-1]

    def begin(self, header: Mapping[str, Any]) -> Entry:
        """Start a run's journal, in place of an earlier one; it gets an id that no other run has."""
        self.entries, self._last, self._torn = [], {}, False
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._path.unlink(missing_ok=True)
        return self.append({"begin": {"id": uuid.uuid4().hex, **header}})

    def append(self, entry: Entry, when: int | None = None) -> Entry:
        """Add a line, on disk before this returns. Points that were logged with the same value are left out, so that a
        resumed run doubles none.

        Args:
            when: milliseconds since 1970; None for now.
        """
        if "metrics" in entry:
            line = entry.get("line")
            fresh = [point for point in entry["metrics"] if self._last.get((line, point[0], point[1])) != point[2]]
            entry = entry | {"metrics": fresh}
        entry = {**entry, "time": int(time.time() * 1000) if when is None else when}
        self.entries.append(entry)
        self._remember(entry)
        if self.folder is not None:
            if self._torn:  # not before: a reader of a running run must not cut off what is being written
                os.truncate(self._path, self._whole)
                self._torn = False
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry, default=str) + "\n")
        return entry

    def touched(self) -> float:
        """Return the time at which the run was last seen alive: the newest file of its folder, seconds since 1970."""
        assert self.folder is not None
        return max(path.stat().st_mtime for path in (self._path, *self.folder.glob("*.json*")) if path.is_file())

    def _remember(self, entry: Entry) -> None:
        for name, step, value in entry.get("metrics", ()):
            self._last[entry.get("line"), name, step] = value


def _readable(content: bytes) -> tuple[int, list[Entry]]:
    """Return the whole lines of a journal's file and how many bytes they take."""
    entries: list[Entry] = []
    size = 0
    for line in content.splitlines(keepends=True):
        try:
            entry = json.loads(line)
        except ValueError:
            break
        if not line.endswith(b"\n") or not isinstance(entry, dict):
            break
        entries.append(entry)
        size += len(line)
    return size, entries
