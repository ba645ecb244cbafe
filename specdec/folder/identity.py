"""The record that a run makes of itself before it begins, and the values in which two such records differ."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from specdec.text.writing import read_json, write_atomically
from specdec.tracking.store import without_password

MISSING = "(none)"


@dataclass(frozen=True)
class RunIdentity:
    """The record that a run makes of itself before it begins."""

    params: dict[str, Any]  # the resolved configuration, flat; a dtype is the one that is used
    environment: dict[str, Any]  # versions, hardware, weights, prompts (`environment.json`), parts of `cell`
    cell: str  # hash that two runs share if they are the same measurement: of `config`, `content` and `code`
    tags: dict[str, str]  # of the MLflow run
    config: dict[str, Any]  # the resolved configuration, as `config.yaml` has it


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    """Write the resolved configuration as `config.yaml`, without the password of `tracking.uri`."""
    write_atomically(folder / "config.yaml", without_password(yaml.safe_dump(dict(config), sort_keys=False)))


def recorded_identity(folder: Path) -> dict[str, Any] | None:
    """Read the identity of the run in a folder; None if an earlier version made it, or a kill cut the file off."""
    identity = (read_json(folder / "environment.json") or {}).get("identity")
    return identity if isinstance(identity, dict) and "cell" in identity else None


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any], parts: Sequence[str] = ("config", "content", "code")
) -> list[str]:
    """Return in which values of these parts two identities differ: `config: structure.gamma 4 -> 5`."""
    differ = []
    for part in parts:
        for key in sorted({*before.get(part, {}), *now.get(part, {})}):
            old, new = (values.get(part, {}).get(key, MISSING) for values in (before, now))
            if old != new:
                differ.append(f"{part}: {key} {_short(old)} -> {_short(new)}")
    return differ


def _short(value: Any) -> str:
    """Return a value for a message; of a hash its beginning."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text[:12] + "..." if re.fullmatch(r"[0-9a-f]{40,64}", text) else text[:100]
