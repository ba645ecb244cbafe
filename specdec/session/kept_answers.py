"""Answers of earlier commands, kept in `advice_dir` for the runs that they are about: the advice of `specdec.advise`,
and that `specdec.certify` passed a combination with parts of other packages.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from specdec import __version__
from specdec.errors import UsageError
from specdec.models.load import POCKET, content_hash, model_path
from specdec.models.model_files import SMOLLM2
from specdec.plan.plan import Plan, PlannedDrafter
from specdec.plugins import code_hash, is_foreign, source_hash
from specdec.session.identify import values_of
from specdec.session.parts import Parts
from specdec.text.lines import file_digest
from specdec.text.writing import write_json


def keyed_by(parts: Parts, prompts: str | None = None) -> dict[str, Any]:
    """Return everything that advice depends on, besides the machine's mood: contents, not names of files. `prompts` is
    the hash of other texts than the configured prompts.
    """
    plan, chosen = parts.plan, parts.plan.chosen.values
    # How a dtype came about changes no result.
    described = {k: v for k, v in parts.target.describe().items() if k not in ("dtype_asked", "dtype_reason")}
    # What `describe` resolves (auto, a folder, a hub id) would give one model several keys.
    resolved = ("model", "dtype", "device", "attention", "prefill_chunk") if described else ()
    target = {key: value for key, value in plan.target_values.items() if key not in resolved} | described
    if described and not described.get("sha256"):
        target["model"] = plan.target_values["model"]  # a hub id: its commit is in `described`
    return {
        "target": target,
        "drafter": _content(chosen.drafter),
        "drafter_dtypes": values_of("dtype", parts.primary.drafter.describe()),
        "verifier": chosen.verifier,
        # The gamma of a chain is one of the predictions; the size of another structure is more than its depth.
        "structure": "chain" if chosen.structure["name"] == "chain" else chosen.structure,
        "prompts": prompts or parts.prompts.content_hash,
        "sampling": plan.config["sampling"],
        "max_new_tokens": parts.limit,
        "device": str(parts.target.device),
        "threads": torch.get_num_threads(),
        "version": __version__,
    }


def _content(value: Any) -> Any:
    """Return the hash of a file or model folder in place of its name; anything else as it is."""
    if isinstance(value, Mapping):
        return {key: item if key == "name" else _content(item) for key, item in value.items()}
    if value in (POCKET, SMOLLM2):
        value = model_path(value, "drafter")
    path = Path(value) if isinstance(value, str) and value else None
    if path is not None and path.is_dir():
        return content_hash(value) or value
    if path is not None and path.is_file():
        return file_digest(path, f"File {path}")
    return value


def key_of(keyed: Mapping[str, Any]) -> str:
    """Return the sha256 of the canonical JSON."""
    text = json.dumps(keyed, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def kept_at(folder: str, key: str) -> Path:
    """Return where advice is kept for later runs: `folder` counts from the working directory."""
    return Path.cwd() / folder / f"{key}.json"


def predicted_speedups(parts: Parts) -> dict[int, float]:
    """Return the speedup that `specdec.advise` predicted for this very run, by gamma; nothing where nobody asked.
    UsageError for a file that is there and is no advice.
    """
    if parts.plan.measurement.batch_size > 1:
        return {}  # advice is about one sequence at a time
    path = kept_at(parts.plan.advice_dir, key_of(keyed_by(parts)))
    if not path.is_file():
        return {}
    try:
        predictions = json.loads(path.read_bytes())["predictions"]
        return {int(item["gamma"]): float(item["speedup"]["estimate"]) for item in predictions}
    except (ValueError, TypeError, KeyError):
        raise UsageError(f"{path} is not what specdec.advise writes: delete it, or ask for advice again.") from None


def foreign_claims(planned: PlannedDrafter) -> dict[str, type]:
    """Return drafter and rule where they are of other packages and claim to be lossless, by family and name."""
    drafter, rule = planned.drafter_class, type(planned.rule)
    found: dict[str, type] = {}
    if is_foreign(drafter) and drafter.capabilities.lossless:
        found[f"drafter {planned.values.drafter['name']}"] = drafter
    if is_foreign(rule) and planned.rule.capabilities.lossless:
        found[f"verifier {planned.values.verifier['name']}"] = rule
    return found


def claim_notes(plan: Plan) -> tuple[str, ...]:
    """Return a sentence for each claim of another package in a plan: passed, or declared and not proven."""
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
    keyed = {
        "drafter": planned.values.drafter,
        "verifier": planned.values.verifier,
        "structure": planned.structure.name,
        "sources": {part: source_hash(cls) for part, cls in foreign_claims(planned).items()},
        "specdec": code_hash(),
    }
    return kept_at(plan.advice_dir, f"certified-{key_of(keyed)}")
