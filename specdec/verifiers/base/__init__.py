"""The contract of an acceptance rule, and what several rules share."""

from specdec.verifiers.base.contract import Verifier, verifiers

__all__ = ["Verifier", "verifiers"]
