"""The ways to propose tokens, one file each."""

from specdec.drafters.base import Drafter, drafters

__all__ = ["Drafter", "drafters"]
