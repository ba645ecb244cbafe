"""Reads records from a local file or the hub, and says in one sentence, with the line, what is wrong."""

import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specdec.errors import UsageError

GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Records:
    """`rows` are (file:line, number from 1, record)."""

    rows: Iterator[tuple[str, int, Mapping[str, Any]]]
    provenance: dict[str, str]


def read_file(name: str, line_field: str | None) -> Records:
    """The records of a local file, gzip or not.

    Args:
        line_field: None for JSON lines; otherwise each line is a text, and this is its name in the record.
    Raises:
        UsageError: missing, unreadable or empty file; while iterating, a line that is no UTF-8 or no object.
    """
    content, digest = read_content(name, "Prompt file prompts.path")
    return Records(_lines(name, content, line_field), {"path": name, "sha256": digest})


def read_content(name: str, what: str) -> tuple[bytes, str]:
    """A local file, unpacked where it is gzip, and the sha256 of the file as it is.

    Args:
        what: what messages call it: a noun and the key that names the file.
    Raises:
        UsageError: missing, unreadable, damaged or empty.
    """
    path = Path(name).expanduser()
    try:
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        if content.startswith(GZIP):
            content = gzip.decompress(content)
    except FileNotFoundError:
        raise UsageError(f"{what}={name} does not exist.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise UsageError(f"{what}={name} is a damaged gzip file: fetch it again.") from None
    except OSError as error:
        raise UsageError(f"{what}={name} cannot be read: {error.strerror}.") from None
    if not content.strip():
        raise UsageError(f"{what}={name} is empty: give one with a record in it.")
    return content, digest


def _lines(name: str, content: bytes, line_field: str | None) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
    # Split at newlines only: `str.splitlines` also splits at characters that may stand inside a text.
    lines = content.removeprefix(b"\xef\xbb\xbf").removesuffix(b"\n").split(b"\n")
    for number, raw in enumerate(lines, start=1):
        where = f"{name}:{number}"
        try:
            line = raw.decode("utf-8").removesuffix("\r")
        except UnicodeDecodeError:
            raise UsageError(f"{where}: not UTF-8 text; convert the file, or see prompts.path.") from None
        if line_field is not None:
            yield where, number, {line_field: line}
        elif line.strip():
            yield where, number, _object(where, line)


def _object(where: str, line: str) -> Mapping[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{where}: not JSON ({getattr(error, 'msg', error)}); prompts.path needs one object per line."
        ) from None
    if not isinstance(record, dict):
        raise UsageError(f"{where}: a JSON {type(record).__name__} where prompts.path needs an object with fields.")
    return record


def read_hub(hub_id: str, config: str | None, split: str, revision: str | None) -> Records:
    """The records of a hub data set, from the local cache where it is.

    Raises:
        UsageError: offline and not in the cache, no such data set or split, a data set that needs a script.
    """
    import datasets
    from pyarrow import ArrowInvalid

    datasets.disable_progress_bars()
    where = {"path": hub_id, "name": config, "split": split, "revision": revision}
    try:
        try:
            data = datasets.load_dataset(**where)
        except ArrowInvalid:  # a truncated file in the cache is not healed by the library
            data = datasets.load_dataset(**where, download_mode="force_redownload")
    except Exception as error:  # datasets, the hub client and their file systems raise some twenty types here
        reason = " ".join(str(error).split())[:300]
        raise UsageError(
            f"Data set prompts.hub_id={hub_id} (prompts.split={split}) cannot be loaded: "
            f"{type(error).__name__}: {reason.rstrip('.')}. The cache searched is "
            f"{datasets.config.HF_DATASETS_CACHE}; without a network HF_HUB_OFFLINE=1 searches it at once, "
            "and prompts.path takes a local file."
        ) from None
    if len(data) == 0:
        raise UsageError(f"Data set prompts.hub_id={hub_id} (prompts.split={split}) is empty.")
    rows = ((f"{hub_id}[{split}]:{number}", number, record) for number, record in enumerate(data, start=1))
    found = re.search(r"@([0-9a-f]{40})", " ".join(data.info.download_checksums or {}))
    about = {
        "hub_id": hub_id,
        "hub_config": config or "",
        "split": split,
        "revision": found[1] if found else revision or "",
        "fingerprint": str(data._fingerprint),
    }
    return Records(rows, about)
