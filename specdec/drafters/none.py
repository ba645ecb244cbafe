"""No drafter: plain autoregressive decoding through the same loop, the baseline of every run."""

from specdec.drafters.base import Drafter, DrafterCapabilities, drafters
from specdec.records import EMPTY, Draft
from specdec.structures.base import EVERY_STRUCTURE, Structure


@drafters.register("none")
class NoDrafter(Drafter):
    """Makes empty drafts, which cost nothing: every round commits one token."""

    capabilities = DrafterCapabilities(fills=EVERY_STRUCTURE, replay="copying")

    def draft(self, structure: Structure) -> Draft:
        return EMPTY
