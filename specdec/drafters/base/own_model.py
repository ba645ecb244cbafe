"""The part that drafters with a part of the target's own model share."""

from dataclasses import replace

from specdec.drafters.base.contract import DrafterCapabilities
from specdec.drafters.base.wrapper import Wrapper
from specdec.drafters.small_model import SmallModel
from specdec.errors import UsageError
from specdec.structures.base import EVERY_STRUCTURE
from specdec.targets.base import Target
from specdec.targets.causal import Causal


class OwnModel(Wrapper):
    """Drafts with a part of the target's own model, as `small_model` drafts with another one."""

    capabilities = DrafterCapabilities(
        fills=EVERY_STRUCTURE, runs_target=True, reports_confidence=True, replay="position"
    )

    def __init__(self, part: SmallModel, strategy: str) -> None:
        part.strategy = strategy
        super().__init__(part)
        self.capabilities = replace(part.capabilities, runs_target=True)


def own_model(target: Target, drafter: str) -> Causal:
    """Return the target as one whose model can draft for it.

    Raises:
        UsageError: the target has no network, or an encoder-decoder's.
    """
    if isinstance(target, Causal):
        return target
    has = "has no network" if target.model is None else "is an encoder-decoder"
    raise UsageError(
        f"Bad value drafter={drafter}: it drafts with layers of the target's own model, and the target {has}; use "
        "target=causal."
    )
