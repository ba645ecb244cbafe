"""No drafter: plain autoregressive decoding through the same loop, the baseline of every run."""

from typing import Literal

from specdec.config import typed
from specdec.drafters.base import Drafter, DrafterCapabilities, drafters
from specdec.records import EMPTY, Draft
from specdec.structures.base import EVERY_STRUCTURE, Structure
from specdec.targets.base import Target


@typed
class NoneConfig:
    name: Literal["none"]


@drafters.register("none")
class NoDrafter(Drafter):
    """Makes empty drafts, which cost nothing: every round commits one token."""

    capabilities = DrafterCapabilities(fills=EVERY_STRUCTURE, replay="copying")

    @classmethod
    def from_config(cls, config: NoneConfig, target: Target) -> "NoDrafter":
        return cls()

    def draft(self, structure: Structure) -> Draft:
        return EMPTY
