"""The files that a configuration names: models, networks and prompts, looked at before anything heavy is imported."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from specdec.config import config_dir
from specdec.models.model_files import (
    SMOLLM2,
    check_folder,
    check_gguf,
    check_place,
    check_tokenizer,
    check_whole,
    gguf_in,
    installed_smollm2,
    is_gguf,
)
from specdec.prompts import prompts
from specdec.text.lines import filled_lines

_BUILT_IN = ("pocket", "random")  # models that are no files of a user
_NO_MODEL = ("retrieval",)  # its `model` is an index


def check_files(values: Mapping[str, Any]) -> None:
    """Refuse files that a composed configuration names and that are missing, empty or cut off, before the libraries
    that read them are imported.

    Raises:
        UsageError: the first fault.
    """
    if "prompts" in values:
        prompts.build(values["prompts"]).check()
    original = (values.get("measurement") or {}).get("original")
    targets = [*_models("target", values.get("target")), ("measurement.original", original)]
    for key, name in targets:
        if isinstance(name, str) and _there(key, name):
            check_folder(Path(name).expanduser())
    for key, name in _models("drafter", values.get("drafter")):
        if _there(key, name):
            check_whole(Path(name).expanduser())


def check_training_files(values: Mapping[str, Any]) -> None:
    """Refuse what `check_files` refuses, and for a training a model without a tokenizer and a missing or empty text.

    Raises:
        UsageError: the first fault.
    """
    check_files(values)
    for _, name in _models("target", values.get("target")):
        check_tokenizer(str(Path(name).expanduser()))
    for group, part in (("data", "source"), ("recipe", "corpus")):
        path = ((values.get(group) or {}).get(part) or {}).get("path")
        if isinstance(path, str) and not Path(path).expanduser().is_dir():
            lines = filled_lines(Path(path).expanduser(), f"Text file {group}.{part}.path={path}")
            next((raw for _, raw in lines if raw.strip()), None)


def _there(key: str, name: str) -> bool:
    """Tell if a name is one of a user's own files in safetensors; one of a file that is not there is refused."""
    if name == SMOLLM2:
        installed_smollm2()
    if name in (*_BUILT_IN, SMOLLM2):
        return False
    check_place(name, f"Model {key}={name}")
    path = Path(name).expanduser()
    if gguf := gguf_in(path) or (name if is_gguf(name) else ""):
        check_gguf(Path(gguf).expanduser())
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
