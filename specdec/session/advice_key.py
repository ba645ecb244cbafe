"""The key by which a run finds the advice that `specdec.advise` gave for it, and what was predicted there."""

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
from specdec.session.dtypes import values_of
from specdec.session.parts import Parts
from specdec.text.lines import file_digest


def keyed_by(parts: Parts, prompts: str | None = None) -> dict[str, Any]:
    """Return everything that advice depends on, besides the machine's mood: contents, not names of files.

    Args:
        prompts: hash of other texts than the configured prompts.
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

    Raises:
        UsageError: a file that is there and is no advice.
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
