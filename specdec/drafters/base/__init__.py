"""The contract of a drafter, and what several drafters share."""

from specdec.drafters.base.contract import EVERY_STRUCTURE, Drafter, DrafterCapabilities, drafters

__all__ = ["EVERY_STRUCTURE", "Drafter", "DrafterCapabilities", "drafters"]
