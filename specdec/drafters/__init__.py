"""What proposes tokens; one file each."""

from specdec.drafters.base import Drafter, drafters

__all__ = ["Drafter", "drafters"]
