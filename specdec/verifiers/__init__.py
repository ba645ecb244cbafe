"""Acceptance rules; one file each."""

from specdec.verifiers.base import Verifier, verifiers

__all__ = ["Verifier", "verifiers"]
