"""The contract of an acceptance rule, and what several rules share."""

from specdec.verifiers.base.contract import Verifier, VerifierCapabilities, verifiers

__all__ = ["Verifier", "VerifierCapabilities", "verifiers"]
