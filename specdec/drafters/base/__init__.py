"""The contract of a drafter, and what several drafters share."""

from specdec.drafters.base.contract import Drafter, DrafterCapabilities, drafters

__all__ = ["Drafter", "DrafterCapabilities", "drafters"]
