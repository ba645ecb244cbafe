"""The parts that a command line with `+drafter=NAME` would compose, for runs with several drafters."""

from collections.abc import Mapping
from typing import Any

from specdec.config import config_dir
from specdec.plugins import extend_search_path


def composed_parts(drafter: str, *overrides: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the plain values of `drafter`, `structure` and `verifier` that `specdec.run +drafter=NAME` has with some
    overrides, and with `changes` of the three, nested as theirs are. A drafter's YAML may choose the other two. Inside
    a command the search path is the command's own. It always has the folders of installed plugins.
    """
    from omegaconf import OmegaConf

    composed = composed_config(f"+drafter={drafter}", *overrides)
    parts = {
        name: OmegaConf.to_container(composed[name], resolve=True) for name in ("drafter", "structure", "verifier")
    }
    changed: Any = OmegaConf.to_container(OmegaConf.merge(parts, dict(changes or {})))
    return dict(changed)


def composed_config(*overrides: str) -> Any:
    """Return the whole configuration, as OmegaConf composes it; see `composed_parts`."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    if GlobalHydra.instance().is_initialized():
        return compose("config", [*overrides])
    extend_search_path()
    with initialize_config_dir(config_dir(), version_base="1.3"):
        return compose("config", [*overrides])
