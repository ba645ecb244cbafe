"""Pages behind `--help`: the groups, and every key with its value and its comment, as the YAML files have them.

Hydra's own page takes seconds to list the groups, and knows no comments.
"""

from collections.abc import Sequence
from pathlib import Path
from string import Template

from specdec.config import config_dir
from specdec.plugins import conf_folders

ASKING = {"--help", "-h"}
_INTERNAL = "hydra"  # the group and the key of Hydra's own settings, which --hydra-help explains
_GLOBAL = "# @package _global_"


def help_page(config_name: str, overrides: Sequence[str]) -> str:
    """Return the page of a command, for the configuration that `overrides` choose.

    Raises:
        Exception: a composition error, which Hydra and OmegaConf raise as some ten types.
    """
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    with initialize_config_dir(version_base="1.3", config_dir=config_dir()):
        composed = compose(config_name, overrides=list(overrides), return_hydra_config=True)
    choices = OmegaConf.to_container(composed.hydra.runtime.choices)
    assert isinstance(choices, dict)
    folders = [Path(config_dir()), *conf_folders().values()]
    keys = [_text(folders, f"{config_name}.yaml", "")]  # then each chosen file, under the key of its values
    for group, chosen in choices.items():
        if not chosen or str(group).partition("/")[0] == _INTERNAL:
            continue
        folder, _, package = str(group).partition("@")
        key = (package or folder).removeprefix("_global_.").replace("/", ".")
        if text := _text(folders, f"{folder}/{chosen}.yaml", "  "):
            keys.append(f"{key}:  ({folder}={chosen})\n{text}")
    names: dict[str, list[str]] = {}  # of the files of each group, those of plugins too
    for above in folders:
        for path in sorted(above.rglob("*.yaml")):
            inside = path.parent.relative_to(above).as_posix()
            if inside != "." and inside.partition("/")[0] != _INTERNAL:
                names.setdefault(inside, []).append(path.stem)
    groups = "\n".join(f"{name}: {', '.join(stems)}" for name, stems in sorted(names.items()))
    return Template(composed.hydra.help.template).safe_substitute(
        APP_CONFIG_GROUPS=groups + "\n", CONFIG="\n\n".join(keys)
    )


def _text(folders: Sequence[Path], name: str, indent: str) -> str:
    """Return a file's keys and comments with those of the files that it extends, without its list of defaults."""
    import yaml

    path = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if path is None:
        return ""
    text = path.read_text(encoding="utf-8")
    extended = [
        _text(folders, f"{Path(name).parent.as_posix()}/{each}.yaml", indent)
        for each in (yaml.safe_load(text) or {}).get("defaults", ())
        if isinstance(each, str) and each != "_self_"
    ]
    lines, left_out = [], False
    for line in text.splitlines():
        if line[:1] not in ("", " ", "-", "#"):
            left_out = line.startswith(("defaults:", f"{_INTERNAL}:"))
        if not left_out and line.strip() and line != _GLOBAL:
            lines.append(indent + line)
    return "\n".join([*filter(None, extended), *lines])
