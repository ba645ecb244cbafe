"""Simulated time: a clock that a cost model moves, and drafters whose drafts take what it says."""

from typing import Any

from specdec.clock import SimulatedClock
from specdec.cost_model import DraftCost
from specdec.drafters.base import Drafter
from specdec.drafters.base.lookup import Lookup
from specdec.drafters.base.wrapper import Wrapper
from specdec.drafters.recorded import RecordedLengths
from specdec.records import Draft
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


class Priced(Wrapper):
    """Drafts as `drafter` does and moves the clock by what such a draft costs; an empty draft costs nothing."""

    def __init__(self, drafter: Drafter, clock: SimulatedClock, cost: DraftCost) -> None:
        super().__init__(drafter)
        self._clock, self._cost = clock, cost

    def draft(self, structure: Structure) -> Draft:
        draft = super().draft(structure)
        self._clock.advance(self._cost.seconds(draft.tree.depth))
        return draft

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "draft_cost": vars(self._cost)}
