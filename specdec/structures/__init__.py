"""The shapes of drafts, one file each."""

from specdec.structures.base import Structure, structures

__all__ = ["Structure", "structures"]
