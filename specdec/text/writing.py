"""Writes a file whole or not at all."""

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write beside the file, then rename: a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(part, path)
