"""Pages behind `--help`: the groups, and every key with its value and its comment, as the YAML files have them.

Hydra's own page takes seconds to list the groups, and knows no comments.
"""

from collections.abc import Iterator, Mapping, Sequence
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
    keys = _keys(folders, config_name, {str(group): str(chosen) for group, chosen in choices.items() if chosen})
    groups = "\n".join(f"{group}: {', '.join(names)}" for group, names in sorted(_groups(folders).items()))
    return Template(composed.hydra.help.template).safe_substitute(
        APP_CONFIG_GROUPS=groups + "\n", CONFIG="\n\n".join(keys)
    )


def _groups(folders: Sequence[Path]) -> dict[str, list[str]]:
    """Return the names of the files of each group, those of plugins too."""
    found: dict[str, list[str]] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*.yaml")):
            group = path.parent.relative_to(folder).as_posix()
            if group != "." and group.partition("/")[0] != _INTERNAL:
                found.setdefault(group, []).append(path.stem)
    return found


def _keys(folders: Sequence[Path], config_name: str, choices: Mapping[str, str]) -> Iterator[str]:
    """Return the text of the command's own file and of each chosen one, under the key that its values stand at."""
    yield _text(folders, f"{config_name}.yaml", "")
    for group, chosen in choices.items():
        if group.partition("/")[0] == _INTERNAL:
            continue
        folder, _, package = group.partition("@")
        key = (package or folder).removeprefix("_global_.").replace("/", ".")
        if text := _text(folders, f"{folder}/{chosen}.yaml", "  "):
            yield f"{key}:  ({folder}={chosen})\n{text}"


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
