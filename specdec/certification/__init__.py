"""Certificates: is a combination of drafter, verifier and structure lossless? Exact, statistical and greedy checks.

For classes of other packages: `rule_checks`, `drafter_checks` and `identity_checks` take any `Verifier` or `Drafter`.
"""

from specdec.certification.certificate import Check
from specdec.certification.exact import drafter_checks, rule_checks
from specdec.certification.greedy_identity import identity_checks

__all__ = ["Check", "drafter_checks", "identity_checks", "rule_checks"]
