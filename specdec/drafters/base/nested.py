"""Drafters made of other drafters: how a part is checked and built, and what is recorded of several."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from specdec.drafters.base.contract import Drafter, drafters
from specdec.errors import UsageError
from specdec.records import Draft, TextStart
from specdec.structures.base import Structure
from specdec.targets.base import Target


@contextmanager
def named_below(place: str, group: str = "drafter") -> Iterator[None]:
    """Rename keys in a UsageError of the part at `place`: its `GROUP.model` is `drafter.PLACE.model` in the whole."""
    try:
        yield
    except UsageError as error:
        own_key = rf"(?<![\w./-]){group}\.(?!{re.escape(place)}\.)(?=\w)"
        raise type(error)(re.sub(own_key, f"drafter.{place}.", str(error))) from None


def checked_part(place: str, values: Mapping[str, Any]) -> None:
    """Check the config of a part at `drafter.PLACE` before any weight is read: it has to propose by itself. Raises
    UsageError: an unknown drafter or key, a drafter that reads a recorded text, or one that is not lossless.
    """
    with named_below(place):
        drafters.config(values)
    can = drafters.get(values["name"]).capabilities
    if can.needs_reference or not can.lossless:
        fault = "it makes the output depart from the target's"
        if can.needs_reference:
            fault = "it reads a recorded text of the target, which a part of another drafter is not given"
        raise UsageError(f"Bad value drafter.{place}.name={values['name']}: {fault}; use another drafter.")


def built_part(place: str, values: Mapping[str, Any], target: Target) -> Drafter:
    """Build the part at `drafter.PLACE`. Raises UsageError: it cannot be made, or was made for another vocabulary."""
    with named_below(place):
        part = drafters.build(values, target=target)
    size = part.capabilities.vocab_size
    if size not in (None, target.vocab_size):
        raise UsageError(
            f"Bad value drafter.{place}.name={values['name']}: it was made for a vocabulary of {size} tokens, and "
            f"drafts for one of {target.vocab_size}; use a drafter with the target's own tokenizer."
        )
    return part


def described(parts: Mapping[str, Drafter]) -> dict[str, Any]:
    """Return what is recorded about several parts, each below its own name; then one hash of all their weights, and the
    sums of parameters, bytes and training over the parts that have weights.
    """
    each = {place: part.describe() for place, part in parts.items()}
    hashes = [str(about.get("sha256") or "") for about in each.values()]
    joined = hashlib.sha256("/".join(hashes).encode()).hexdigest() if any(hashes) else ""
    models = [about for about in each.values() if "parameters" in about]
    found: dict[str, Any] = {**each, "sha256": joined}
    if models:
        found |= {key: sum(about.get(key, 0) for about in models) for key in ("parameters", "weight_bytes")}
    training = [about.get("training") or {} for about in models]
    if models and all({"tokens", "seconds"} <= one.keys() for one in training):
        found["training"] = {key: sum(one[key] for one in training) for key in ("tokens", "seconds")}
    return found


class Composite(Drafter):
    """A drafter made of others, which follow every text, and remember it, as it does. Subclasses draft."""

    nested: Mapping[str, Drafter]  # by their places below `drafter`

    def prepare(self, capacity: int, structure: Structure) -> None:
        for place, part in self.nested.items():
            with named_below(place):
                part.prepare(capacity, structure)

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        for part in self.nested.values():
            part.start(text, states)

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        for part in self.nested.values():
            part.commit(tokens, states)

    def retract(self, count: int) -> bool:
        return all([part.retract(count) for part in self.nested.values()])

    def observe(self, draft: Draft, logits: Tensor) -> None:
        for part in self.nested.values():
            if part.capabilities.reads_logits:
                part.observe(draft, logits)

    @property
    def remembers(self) -> str:
        return " ".join(f"{place}.{own}" for place, part in self.nested.items() if (own := part.remembers))

    def remember(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        for part in self.nested.values():
            part.remember(prompt, output)


class Wrapper(Composite):
    """A drafter that does everything as `drafter` does. Subclasses override what they change."""

    def __init__(self, drafter: Drafter) -> None:
        self.drafter, self.nested = drafter, {"of": drafter}
        self.capabilities = drafter.capabilities

    def draft(self, structure: Structure) -> Draft:
        return self.drafter.draft(structure)

    def laws(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor | None:
        return self.drafter.laws(prompt, text)

    def chances(self, prompt: Sequence[int], text: Sequence[int], states: Tensor | None, depth: int) -> Tensor | None:
        return self.drafter.chances(prompt, text, states, depth)

    def describe(self) -> dict[str, Any]:
        return self.drafter.describe()

    @property
    def passes(self) -> Mapping[str, Mapping[str, Any]]:
        return self.drafter.passes

    @property
    def notes(self) -> tuple[str, ...]:
        return self.drafter.notes

    @property
    def flops_per_token(self) -> float:
        return self.drafter.flops_per_token
