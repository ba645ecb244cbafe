"""The contract of a drafter, and what several drafters share."""

from specdec.drafters.base.contract import BatchDrafter, Drafter, DrafterCapabilities, Replay, drafters

__all__ = ["BatchDrafter", "Drafter", "DrafterCapabilities", "Replay", "drafters"]
