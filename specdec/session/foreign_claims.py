"""Claims of drafters and acceptance rules from other packages to be lossless: declared, not proven, until their
combination passes `specdec.certify`, which leaves a record that later runs in the same folder find.
"""

from pathlib import Path

from specdec.code_version import code_hash
from specdec.plan.plan import Plan, PlannedDrafter
from specdec.plugins import is_foreign, source_hash
from specdec.session.advice_key import kept_at, key_of
from specdec.text.writing import write_json


def foreign_claims(planned: PlannedDrafter) -> dict[str, type]:
    """Return the drafter and its rule where they are of other packages and claim to be lossless, by their family and
    name.
    """
    drafter, rule = planned.drafter_class, type(planned.rule)
    found: dict[str, type] = {}
    if is_foreign(drafter) and drafter.capabilities.lossless:
        found[f"drafter {planned.values.drafter['name']}"] = drafter
    if is_foreign(rule) and planned.rule.capabilities.lossless:
        found[f"verifier {planned.values.verifier['name']}"] = rule
    return found


def claim_notes(plan: Plan) -> tuple[str, ...]:
    """Return a sentence for each claim of another package, for all drafters of a plan: passed, or declared and not
    proven.
    """
    notes: list[str] = []
    for planned in plan.drafters:
        claims = foreign_claims(planned)
        passed = bool(claims) and _record(plan, planned).is_file()
        for part, cls in claims.items():
            if passed:
                status = "declared by its package, and this combination passed python -m specdec.certify"
            else:
                status = "declared, not proven: python -m specdec.certify with the same overrides tries it"
            notes.append(f"The claim of {part} ({cls.__module__}) to be lossless is {status}.")
    return tuple(dict.fromkeys(notes))


def record_passed(plan: Plan, certificate: Path) -> None:
    """Write down that a combination with parts of other packages passed a certificate; nothing where it has none."""
    if foreign_claims(plan.chosen):
        write_json(_record(plan, plan.chosen), {"certificate": str(certificate)})


def _record(plan: Plan, planned: PlannedDrafter) -> Path:
    """Return where the record of a combination is kept: another one after any change of its values or of its code."""
    key = key_of(
        {
            "drafter": planned.values.drafter,
            "verifier": planned.values.verifier,
            "structure": planned.structure.name,
            "sources": {part: source_hash(cls) for part, cls in foreign_claims(planned).items()},
            "specdec": code_hash(),
        }
    )
    return kept_at(plan.advice_dir, f"certified-{key}")
