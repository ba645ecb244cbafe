"""The part that drafters around another drafter share: whatever a wrapper leaves as it is goes to the one within."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from specdec.drafters.base.contract import Drafter
from specdec.records import Draft, TextStart
from specdec.structures.base import Structure


class Wrapper(Drafter):
    """A drafter that does everything as `drafter` does. Subclasses override what they change.

    Attributes:
        drafter: the one within.
    """

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter
        self.capabilities = drafter.capabilities

    def prepare(self, capacity: int, structure: Structure) -> None:
        self.drafter.prepare(capacity, structure)

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self.drafter.start(text, states)

    def draft(self, structure: Structure) -> Draft:
        return self.drafter.draft(structure)

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        self.drafter.commit(tokens, states)

    def retract(self, count: int) -> bool:
        return self.drafter.retract(count)

    def observe(self, draft: Draft, logits: Tensor) -> None:
        self.drafter.observe(draft, logits)

    @property
    def remembers(self) -> str:
        return self.drafter.remembers and f"of.{self.drafter.remembers}"

    def remember(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        self.drafter.remember(prompt, output)

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
