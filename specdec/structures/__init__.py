"""Shapes that a drafter is asked to fill; one file each."""

from specdec.structures.base import Structure, structures

__all__ = ["Structure", "structures"]
