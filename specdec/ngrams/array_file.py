"""Tables of n-grams on disk: named arrays in one safetensors file, with a checksum of each."""

import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file


def write_arrays(path: Path, arrays: dict[str, np.ndarray], metadata: Mapping[str, str]) -> None:
    """Write arrays and what is said about them, `format` included; a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        save_file(arrays, part, {**metadata, "checksums": _checksums(arrays)})
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def read_arrays(path: Path, format: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read what `write_arrays` wrote.

    Raises:
        ValueError: the file is damaged, or holds something else; the message says which.
    """
    try:
        with safe_open(path, framework="numpy") as stored:
            metadata = stored.metadata() or {}
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    if metadata.get("format") != format:
        raise ValueError(f"its format is not {format!r}")
    try:
        recorded = json.loads(metadata.get("checksums", ""))
    except (ValueError, RecursionError):
        recorded = None
    if recorded != json.loads(_checksums(arrays)):
        raise ValueError("its checksums do not fit")
    return arrays, metadata


def _checksums(arrays: Mapping[str, np.ndarray]) -> str:
    return json.dumps({name: zlib.crc32(np.ascontiguousarray(array).data) for name, array in arrays.items()})
