"""The code of a run: a hash of specdec's own files, and packages of others that add parts to it, found by their entry
points, none imported here. Light, so that commands can ask at once.

A package is a plugin if it has an entry point in one of `GROUPS`. Its folder `conf/` is then on Hydra's search path, so
that one line of its `pyproject.toml` brings both its classes and their YAML files.
"""

import hashlib
import importlib.util
import sys
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

_FAMILIES = ("drafters", "metrics", "peers", "prompts", "structures", "studies", "targets", "verifiers")
GROUPS = tuple(f"specdec.{family}" for family in _FAMILIES)
_PACKAGE = Path(__file__).resolve().parent


@cache
def code_hash(package: Path = _PACKAGE) -> str:
    """Return the sha256 over the names and contents of the package's Python files, in order.

    The analysis, which reads results and makes none, has no part in it, wherever it is installed. Read once for each
    process, so that it is the code that runs, and not what an editor made of it since.
    """
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package).as_posix()
        if not inside.startswith("analysis/"):
            digest.update(f"{inside}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def conf_folders() -> dict[str, Path]:
    """Return the folder `conf/` of each plugin that has one, by the name of its package, in alphabetical order."""
    every = entry_points()
    modules = (entry.value.partition(":")[0] for group in GROUPS for entry in every.select(group=group))
    packages = sorted({module.partition(".")[0].strip() for module in modules})
    folders = {}
    for package in packages:
        try:
            found = importlib.util.find_spec(package)
        except (ImportError, ValueError):
            found = None  # the registry says so where one of its parts is asked for
        for place in (found.submodule_search_locations or ()) if found is not None else ():
            if (Path(place) / "conf").is_dir():
                folders[package] = Path(place) / "conf"
    return folders


@cache
def extend_search_path() -> None:
    """Have Hydra search the plugins' folders too, behind specdec's own, in every command and `compose` that follows."""
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    class PluginFolders(SearchPathPlugin):
        """Appends the folders to each search path that Hydra makes."""

        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            for package, folder in conf_folders().items():
                search_path.append(provider=package, path=f"file://{folder}")

    Plugins.instance().register(PluginFolders)


def is_foreign(cls: type) -> bool:
    """Return whether a class is of another package than specdec."""
    return cls.__module__.partition(".")[0] != "specdec"


def source_hash(cls: type) -> str:
    """Return the sha256 of the Python files of a class's package, or of its one file; "" where it was typed in."""
    module = sys.modules.get(cls.__module__.partition(".")[0])
    file = getattr(module, "__file__", None)
    if file is None or not Path(file).is_file():
        return ""
    path = Path(file)
    return code_hash(path.parent) if path.name == "__init__.py" else hashlib.sha256(path.read_bytes()).hexdigest()
