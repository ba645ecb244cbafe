"""Simulated time: a clock that a cost model moves, and drafters whose drafts take what it says."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from specdec.clock import SimulatedClock
from specdec.cost_model import DraftCost
from specdec.drafters.base import Drafter
from specdec.drafters.base.lookup import Lookup
from specdec.drafters.recorded import RecordedLengths
from specdec.records import Draft, TextStart
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.targets.replay import Replay


def priced(drafter: Drafter, target: Target) -> Drafter:
    """`drafter` as it is where time is measured; where it is simulated, one whose drafts take what they would."""
    if not isinstance(target, Replay):
        return drafter
    cost = target.cost.draft
    if isinstance(drafter, RecordedLengths):
        cost = drafter.cost or cost
    elif isinstance(drafter, Lookup):
        cost = DraftCost(fixed_s=target.cost.lookup_s, step_s=0.0)
    return Priced(drafter, target.clock(), cost)


class Priced(Drafter):
    """Drafts as `drafter` does and moves the clock by what such a draft costs; an empty draft costs nothing."""

    def __init__(self, drafter: Drafter, clock: SimulatedClock, cost: DraftCost) -> None:
        self.drafter, self._clock, self._cost = drafter, clock, cost
        self.capabilities = drafter.capabilities

    def prepare(self, capacity: int, structure: Structure) -> None:
        self.drafter.prepare(capacity, structure)

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self.drafter.start(text, states)

    def draft(self, structure: Structure) -> Draft:
        draft = self.drafter.draft(structure)
        self._clock.advance(self._cost.seconds(draft.tree.depth))
        return draft

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        self.drafter.commit(tokens, states)

    def observe(self, draft: Draft, logits: Tensor) -> None:
        self.drafter.observe(draft, logits)

    def remember(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        self.drafter.remember(prompt, output)

    def laws(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor | None:
        return self.drafter.laws(prompt, text)

    def describe(self) -> dict[str, Any]:
        return {**self.drafter.describe(), "draft_cost": vars(self._cost)}

    @property
    def flops_per_token(self) -> float:
        return self.drafter.flops_per_token
