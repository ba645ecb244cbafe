"""Writes a file whole or not at all, and reads one that may not be whole; tells a folder that somebody writes to."""

import json
import os
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from specdec.errors import UsageError

LOCK = ".lock"  # a file in a folder of results, locked by the process that writes there


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write beside the file, then rename: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(part, path)


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON by `write_atomically`; what JSON has no form for becomes its text."""
    write_atomically(path, json.dumps(value, indent=1, default=str) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file; None if there is none, or no whole one."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def held(folder: Path, otherwise: str) -> FileLock:
    """Lock a folder, made if absent, until released; UsageError `otherwise` where another process writes there."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UsageError(otherwise) from None
    return lock


def is_locked(folder: Path) -> bool:
    """Return True if a process that is alive writes to the folder."""
    try:
        with FileLock(folder / LOCK, timeout=0):
            return False
    except Timeout:
        return True
