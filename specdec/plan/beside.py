"""The drafters of `measurement.drafters`, which a session decodes by beside the one of `+drafter=`.

Knows configurations only: `parts` makes them into arms.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TypeVar

from specdec.config import DrafterSettings, RunConfig, validated
from specdec.drafters import drafters
from specdec.errors import UsageError
from specdec.plan.compositions import composed_parts

C = TypeVar("C", bound=RunConfig)


def settled(config: C) -> C:
    """Return the configuration with all values of its other drafters in `measurement.drafter_settings`.

    A drafter has what `specdec.run +drafter=NAME` composes; the settings that are there replace single values. A
    structure or rule of another name brings the values of its own YAML. A settled configuration stays as it is, even
    where the YAMLs have changed since: a run's `config.yaml` runs it again.

    Raises:
        UsageError: there is no such drafter; settings for a drafter that is not beside the others.
    """
    measurement = config.measurement
    names = [name for name in dict.fromkeys(measurement.drafters) if name != config.drafter["name"]]
    for name in measurement.drafter_settings:
        if name not in names:
            instead = "use drafter.*, structure.* and verifier.*" if name == config.drafter["name"] else "add it there"
            raise UsageError(
                f"Bad value measurement.drafter_settings.{name}: it is not one of the drafters beside "
                f"+drafter={config.drafter['name']} that measurement.drafters names; {instead}."
            )
    if names and (config.drafter["name"] == "none"):
        raise UsageError(
            "Bad value measurement.drafters: +drafter=none drafts nothing that others could be compared with; plain "
            "decoding is always measured, so choose one of them by +drafter=NAME."
        )
    settings = {name: _composed(name, measurement.drafter_settings.get(name, DrafterSettings())) for name in names}
    chosen = DrafterSettings(drafter=config.drafter, structure=config.structure, verifier=config.verifier)
    settings = {name: own for name, own in settings.items() if own != chosen}  # a YAML may have another name
    return replace(config, measurement=replace(measurement, drafter_settings=settings))


def _composed(name: str, settings: DrafterSettings) -> DrafterSettings:
    """Return the values of a drafter's parts, with `settings` in place of single ones."""
    from hydra.errors import HydraException
    from omegaconf import OmegaConf

    changes = asdict(settings)
    # A name may be that of a YAML with some values changed, so what it composes to has the last word on it.
    others = [f"{part}={changes[part].pop('name')}" for part in ("structure", "verifier") if "name" in changes[part]]
    try:
        values = composed_parts(name, *others)
    except HydraException as error:
        drafters.get(name)  # says which names there are
        raise UsageError(f"Bad value measurement.drafters={name}: {str(error).splitlines()[0]}.") from None
    merged = {part: OmegaConf.merge(values[part], changes[part]) for part in changes}
    return validated(DrafterSettings, {part: OmegaConf.to_container(each) for part, each in merged.items()})


def beside(config: RunConfig) -> dict[str, RunConfig]:
    """Return the configuration of each other drafter of a settled configuration, as if it were the only one.

    Raises:
        UsageError: one of the session's drafters commits a recorded text, whatever the target says.
    """
    settings = config.measurement.drafter_settings
    found = {
        name: replace(config, drafter=own.drafter, structure=own.structure, verifier=own.verifier)
        for name, own in settings.items()
    }
    if found and any(each.drafter.get("forced", False) for each in (config, *found.values())):
        raise UsageError(
            "Bad value drafter.forced=true: with it the recorded text is committed, so nothing beside it could be "
            "compared; use drafter.forced=false or measurement.drafters=[]."
        )
    return found


def refuse_several(config: RunConfig, who: str, instead: str) -> None:
    """Raise UsageError where the configuration has `measurement.drafters` and `who` takes one drafter."""
    if config.measurement.drafters:
        names = ",".join(config.measurement.drafters)
        raise UsageError(f"Bad value measurement.drafters=[{names}]: {who}; {instead}.")


@contextmanager
def named_beside(name: str) -> Iterator[None]:
    """Say in a UsageError which of several drafters it is about, and where its values stand."""
    try:
        yield
    except UsageError as error:
        raise UsageError(
            f"{error} That is drafter {name!r} of measurement.drafters: its values stand in "
            f"measurement.drafter_settings.{name}."
        ) from None
