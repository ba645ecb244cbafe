"""The names, keys and files of a configuration, looked at before anything heavy is imported.

Names and keys are answered from the YAML files and the names of modules. The registries answer them again, with the
same sentences; they have to import all parts of a family for that.
"""

from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import yaml

from specdec.config import config_dir
from specdec.errors import UsageError, near_misses
from specdec.models import model_files
from specdec.plugins import GROUPS
from specdec.prompts import prompts
from specdec.text.lines import filled_lines

FAMILIES = {
    "target": "targets",
    "drafter": "drafters",
    "verifier": "verifiers",
    "structure": "structures",
    "prompts": "prompts",
    "study": "studies",
}
_BUILT_IN = ("pocket", "random")  # models that are no files of a user
_NO_MODEL = ("retrieval",)  # its `model` is an index


def check_names(values: Mapping[str, Any]) -> None:
    """Refuse, by a UsageError, parts of a composed configuration that are not there, and keys that the YAML of a part
    does not have. Where parts of other packages are installed all is left to the registries.
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
    """Return the keys of the part of a name, in the order of its YAML; UsageError where there is no such part."""
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


def check_files(values: Mapping[str, Any]) -> None:
    """Refuse files that a composed configuration names and that are missing, empty or cut off (UsageError for the first
    one), before the libraries that read them are imported.
    """
    if "prompts" in values:
        prompts.build(values["prompts"]).check()
    original = (values.get("measurement") or {}).get("original")
    targets = [*_models("target", values.get("target")), ("measurement.original", original)]
    for key, name in targets:
        if isinstance(name, str) and _there(key, name):
            model_files.check_folder(Path(name).expanduser())
    for key, name in _models("drafter", values.get("drafter")):
        if _there(key, name):
            model_files.check_whole(Path(name).expanduser())


def check_training_files(values: Mapping[str, Any]) -> None:
    """Refuse what `check_files` refuses, and for a training a model without a tokenizer and a missing or empty text."""
    check_files(values)
    for _, name in _models("target", values.get("target")):
        model_files.check_tokenizer(str(Path(name).expanduser()))
    for group, part in (("data", "source"), ("recipe", "corpus")):
        path = ((values.get(group) or {}).get(part) or {}).get("path")
        if isinstance(path, str) and not Path(path).expanduser().is_dir():
            lines = filled_lines(Path(path).expanduser(), f"Text file {group}.{part}.path={path}")
            next((raw for _, raw in lines if raw.strip()), None)


def _there(key: str, name: str) -> bool:
    """Tell if a name is one of a user's own files in safetensors; one of a file that is not there is refused."""
    if name == model_files.SMOLLM2:
        model_files.installed_smollm2()
    if name in (*_BUILT_IN, model_files.SMOLLM2):
        return False
    model_files.check_place(name, f"Model {key}={name}")
    path = Path(name).expanduser()
    if gguf := model_files.gguf_in(path) or (name if model_files.is_gguf(name) else ""):
        model_files.check_gguf(Path(gguf).expanduser())
    return path.exists() and not gguf


def _models(key: str, part: Any) -> Iterator[tuple[str, str]]:
    """Yield key and value of what parts of specdec's own load, those of a part within a part too."""
    if not isinstance(part, Mapping):
        return
    name, group = part.get("name"), key.partition(".")[0]
    own = name is None or name not in _NO_MODEL and (Path(config_dir()) / group / f"{name}.yaml").is_file()
    for each, value in part.items():
        several = value if each == "models" and isinstance(value, list) else [value] if each == "model" else []
        if own:
            yield from ((f"{key}.{each}", one) for one in several if isinstance(one, str))
        if each != "device_map":  # its keys are modules, which may be called `model`
            yield from _models(f"{key}.{each}", value)
