"""The contract of a drafter, and what several drafters share."""

from specdec.drafters.base.contract import Drafter, drafters

__all__ = ["Drafter", "drafters"]
