"""Claims of drafters and acceptance rules from other packages to be lossless: declared, not proven, until their
combination passes `specdec.certify`, which leaves a record that later runs in the same folder find.
"""

import json
from pathlib import Path

from specdec.code_version import code_hash
from specdec.config import RunConfig
from specdec.drafters import drafters
from specdec.plan.beside import beside
from specdec.plugins import is_foreign, source_hash
from specdec.session.advice_key import kept_at, key_of
from specdec.structures import structures
from specdec.text.writing import write_atomically
from specdec.verifiers import verifiers


def foreign_claims(config: RunConfig) -> dict[str, type]:
    """Return the drafter and the rule of a configuration that are of other packages and claim to be lossless, by their
    family and name.
    """
    drafter, rule = drafters.get(config.drafter["name"]), verifiers.get(config.verifier["name"])
    found: dict[str, type] = {}
    if is_foreign(drafter) and drafter.capabilities.lossless:
        found[f"drafter {config.drafter['name']}"] = drafter
    if is_foreign(rule) and verifiers.build(config.verifier).capabilities.lossless:
        found[f"verifier {config.verifier['name']}"] = rule
    return found


def claim_notes(config: RunConfig) -> tuple[str, ...]:
    """Return a sentence for each claim of another package in a settled configuration, that of `measurement.drafters`
    included: passed, or declared and not proven.
    """
    notes: list[str] = []
    for each in (config, *beside(config).values()):
        passed = bool(foreign_claims(each)) and _record(each).is_file()
        for part, cls in foreign_claims(each).items():
            if passed:
                standing = "declared by its package, and this combination passed python -m specdec.certify"
            else:
                standing = "declared, not proven: python -m specdec.certify with the same overrides tries it"
            notes.append(f"The claim of {part} ({cls.__module__}) to be lossless is {standing}.")
    return tuple(dict.fromkeys(notes))


def record_passed(config: RunConfig, certificate: Path) -> None:
    """Write down that a combination with parts of other packages passed a certificate; nothing where it has none."""
    if foreign_claims(config):
        write_atomically(_record(config), json.dumps({"certificate": str(certificate)}) + "\n")


def _record(config: RunConfig) -> Path:
    """Return where the record of a combination stands: another one after any change of its values or of its code."""
    key = key_of(
        {
            "drafter": config.drafter,
            "verifier": config.verifier,
            "structure": structures.build(config.structure).name,
            "sources": {part: source_hash(cls) for part, cls in foreign_claims(config).items()},
            "specdec": code_hash(),
        }
    )
    return kept_at(config.advice_dir, f"certified-{key}")
