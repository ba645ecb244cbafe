"""The shapes of drafts, one file each."""

from specdec.structures.base import EVERY_STRUCTURE, Structure, structures

__all__ = ["EVERY_STRUCTURE", "Structure", "structures"]
