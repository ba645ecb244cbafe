"""Unknown names and keys, answered from the YAML files and the names of modules, before anything heavy is imported.

The registries answer them again, with the same sentences; they have to import all parts of a family for that.
"""

from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import yaml

from specdec.config import config_dir
from specdec.errors import UsageError, near_misses
from specdec.plugins import GROUPS

FAMILIES = {
    "target": "targets",
    "drafter": "drafters",
    "verifier": "verifiers",
    "structure": "structures",
    "prompts": "prompts",
    "study": "studies",
}


def check_names(values: Mapping[str, Any]) -> None:
    """Refuse parts of a composed configuration that are not there, and keys that the YAML of a part does not have.
    Nothing is known of the parts of other packages, so where some are installed all is left to the registries.

    Raises:
        UsageError: the first unknown name or key.
    """
    if not entry_points().groups.isdisjoint(GROUPS):
        return
    for group, family in FAMILIES.items():
        part = values.get(group)
        if isinstance(part, Mapping) and "name" in part:
            keys = _keys(group, family, part["name"])
            for key in part:
                if key not in keys:
                    known = ", ".join(each for each in keys if each != "name") or "(none)"
                    raise UsageError(f"Unknown key {group}.{key}: {group} {part['name']!r} has the keys {known}.")
    measurement = values.get("measurement")
    if isinstance(measurement, Mapping):
        for name in measurement.get("drafters") or ():
            _keys("drafter", "drafters", name)


def _keys(group: str, family: str, name: Any) -> list[str]:
    """Return the keys of the part of a name, in the order of its YAML.

    Raises:
        UsageError: there is no such part.
    """
    folder = Path(config_dir()) / group
    names = set()
    for path in sorted(folder.rglob("*.yaml"), key=lambda path: path.stem != name):  # mostly the file of this name
        values = dict(_lines(path))
        names.add(str(values["name"]))
        if values["name"] == name:
            return list(values)
    meant, known = near_misses(str(name), sorted(names)), ", ".join(sorted(names))
    raise UsageError(f"Unknown {group} {name!r}.{meant} The {family} are: {known}.")


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the keys of a file with their values, those of its list of defaults first."""
    content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    for default in content.pop("defaults", ()):
        if isinstance(default, str) and default != "_self_":  # a file that it extends
            name = default.partition("@")[0]
            folder = Path(config_dir()) if name.startswith("/") else path.parent
            yield from _lines(folder / f"{name.lstrip('/')}.yaml")
        elif isinstance(default, dict):  # a part below one of its keys
            package = str(next(iter(default))).partition("@")[2]
            if package and not package.startswith("_global_"):
                yield package.partition(".")[0], None
    yield from content.items()
