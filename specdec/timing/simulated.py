"""Simulated time: a clock that a cost model moves, and drafters whose drafts take what it says."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from specdec.clock import SimulatedClock
from specdec.cost_model import DraftCost
from specdec.drafters.base import Drafter
from specdec.drafters.base.lookup import Lookup
from specdec.drafters.base.nested import Wrapper
from specdec.drafters.recorded import RecordedLengths
from specdec.records import Draft, TextStart
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.targets.replay import Price, Replay, Sizes


def priced(drafter: Drafter, target: Target) -> Drafter:
    """Return a drafter whose drafts take what they would where time is simulated, and `drafter` itself elsewhere."""
    if not isinstance(target, Replay):
        return drafter
    model: DraftCost | None = target.cost.draft
    if isinstance(drafter, RecordedLengths):
        model = drafter.cost or (None if drafter.looks_up else model)
    elif isinstance(drafter, Lookup):
        model = None
    return Priced(drafter, target.clock(), replace(target.price, draft=model))


class Priced(Wrapper):
    """Drafts as `drafter` does and moves the clock by what such a draft costs; an empty draft costs nothing."""

    def __init__(self, drafter: Drafter, clock: SimulatedClock, price: Price) -> None:
        super().__init__(drafter)
        self._clock, self.price = clock, price
        self._context = 0  # tokens in the target's cache, which the root is not yet in

    def prepare(self, capacity: int, structure: Structure) -> None:
        self.drafter.prepare(capacity, structure)  # its keys stand at `drafter` itself, as in `remembers`

    @property
    def remembers(self) -> str:
        return self.drafter.remembers

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        super().start(text, states)
        self._context = len(text.prompt) - 1

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        super().commit(tokens, states)
        self._context += len(tokens)

    def draft(self, structure: Structure) -> Draft:
        draft = super().draft(structure)
        self._clock.advance(float(self.price.draft_s(Sizes.of(draft.tree), self._context)))
        return draft

    def describe(self) -> dict[str, Any]:
        price = self.price
        lookup = {"lookup_s": price.cost.lookup_s, "lookup_share": price.cost.lookup_share}
        return {**super().describe(), "draft_cost": lookup if price.draft is None else vars(price.draft)}
