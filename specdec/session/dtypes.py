"""The arithmetic of a run's models, as its record and its reader get it: what was asked for, what is used, and why."""

from collections.abc import Mapping
from typing import Any

from specdec.session.parts import Parts


def arithmetic_notes(parts: Parts) -> tuple[str, ...]:
    """Return a sentence for each reason why a model computes in another dtype than was asked for, or slowly; it begins
    with the models that it is about.
    """
    drafters = {each.name if parts.beside else "drafter": each.drafter.describe() for each in parts.drafters}
    about: dict[str, list[str]] = {}
    for who, described in {"target": parts.target.describe(), **drafters}.items():
        for reason in values_of("dtype_reason", described):
            about.setdefault(reason, []).append(who)
    return tuple(f"{' and '.join(who).capitalize()}: {reason}" for reason, who in about.items())


def with_used_dtypes(params: Mapping[str, Any], described: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return flat parameters with the dtype that is used in place of every `dtype`, and behind it, as `dtype_asked`,
    what the configuration says.

    Args:
        described: what is recorded of the models, by group: that of `drafter.of.dtype` is in `drafter`, below `of` or,
            where the drafter names its models itself, anywhere.
    """
    found: dict[str, Any] = {}
    for key, value in params.items():
        group, *below = key.split(".")
        if not below or below[-1] != "dtype" or group not in described:
            found[key] = value
            continue
        place: Any = described[group]
        for part in below[:-1]:
            place = place.get(part, place) if isinstance(place, Mapping) else place
        found |= {key: ", ".join(values_of("dtype", place)) or value, f"{key}_asked": value}
    return found


def values_of(key: str, described: Mapping[str, Any]) -> list[str]:
    """Return the distinct values of a key, at any depth, of what is recorded of a model."""
    found: dict[str, None] = {}
    for name, value in described.items():
        if isinstance(value, Mapping):
            found |= dict.fromkeys(values_of(key, value))
        elif name == key:
            found[str(value)] = None
    return list(found)
