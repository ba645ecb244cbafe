"""Results that drafters make once and keep in `drafter.cache_dir`, some as named arrays in one safetensors file."""

import hashlib
import json
import logging
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from specdec.errors import UsageError

T = TypeVar("T")
logger = logging.getLogger(__name__)


def made_once(
    cache_dir: str | None,
    key: Callable[[], str],
    noun: str,
    make: Callable[[], T],
    write: Callable[[Path, T], None],
    read: Callable[[Path], T],
    suffix: str = ".safetensors",
) -> T:
    """Return what an earlier run of the same key wrote to `cache_dir`; if nothing is there, make it and write it. What
    is damaged, for which `read` raises an error, is made again, with a warning. The key is everything that determines
    what is made. Without a folder it is made and not kept. Raises UsageError: the folder cannot be written to.
    """
    if cache_dir is None:
        return make()
    path = Path(cache_dir).expanduser() / f"{hashlib.sha256(key().encode()).hexdigest()[:16]}{suffix}"
    if path.exists():
        try:
            return read(path)
        except (ValueError, LookupError, TypeError, OSError) as error:
            logger.warning("The %s %s is damaged (%s): it is made again.", noun, path, error)
    made = make()
    try:
        write(path, made)
        return read(path)
    except OSError as error:
        raise UsageError(
            f"Bad value drafter.cache_dir={cache_dir}: the {noun} cannot be kept there ({error.strerror}); give "
            "another folder, or null to keep none."
        ) from None


def write_arrays(path: Path, arrays: dict[str, np.ndarray], format: str) -> None:
    """Write arrays and the name of their format; a reader never sees half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        save_file(arrays, part, {"format": format, "checksums": _checksums(arrays)})
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def read_arrays(path: Path, format: str) -> dict[str, np.ndarray]:
    """Read what `write_arrays` wrote. Raises ValueError, which says why: a damaged file, or one of something else."""
    try:
        with safe_open(path, framework="numpy") as stored:
            metadata = stored.metadata() or {}
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    if metadata.get("format") != format:
        raise ValueError(f"its format is not {format!r}")
    if json.loads(metadata.get("checksums", "{}")) != json.loads(_checksums(arrays)):
        raise ValueError("its checksums do not fit")
    return arrays


def _checksums(arrays: Mapping[str, np.ndarray]) -> str:
    return json.dumps({name: zlib.crc32(np.ascontiguousarray(array).data) for name, array in arrays.items()})
