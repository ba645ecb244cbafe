"""The conformance suite for parts of other packages: what specdec's own parts have to pass, run on yours.

A structure of another name than specdec's four is enumerated once a function in `FILL` fills it, in the `WAYS` it says.
"""

from specdec.certification.table_drafts import FILL, WAYS
from specdec.testing.conformance import (
    ConformanceCase,
    cases_of,
    drafter_cases,
    prompts_cases,
    structure_cases,
    target_cases,
    verifier_cases,
)

__all__ = [
    "FILL",
    "WAYS",
    "ConformanceCase",
    "cases_of",
    "drafter_cases",
    "prompts_cases",
    "structure_cases",
    "target_cases",
    "verifier_cases",
]
