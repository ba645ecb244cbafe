"""The first line of a run: what is decoded, in which number format and why, on what, and for how long at most.

It is made of the configuration alone, before a weight is read.
"""

import json
import re
from pathlib import Path
from typing import Any

import torch

from specdec.analysis.findings import counted
from specdec.config import RunConfig
from specdec.drafters import drafters
from specdec.environment import cpu
from specdec.models.arithmetic import format_name, model_arithmetic
from specdec.models.load import model_path, resolve_device, resolve_dtype
from specdec.structures import structures
from specdec.targets import targets

_UNTOLD = re.compile(r"\((R|TM)\)| CPU| Processor| @.*")  # parts of a processor's name that tell nothing


def opening_line(config: RunConfig, budget_seconds: float | None, *, brief: bool = False) -> str:
    """Return model, number format and its reason, device, prompts, drafts and time budget in one sentence.

    Args:
        budget_seconds: what `budget_of` gives.
        brief: leave the reason, lengths, the drafts and the key of the budget out, and name the processor.
    Raises:
        UsageError: a part of the configuration that says what is decoded is wrong.
    """
    measurement, structure = config.measurement, structures.build(config.structure)
    targets.config(config.target)
    drafters.config(config.drafter)
    bound = (
        "no time budget"
        if budget_seconds is None
        else f"time budget {budget_seconds:g} s until the last prompt is decoded (measurement.budget_seconds; null: "
        "no bound)"
    )
    names = ", ".join(dict.fromkeys((str(config.drafter["name"]), *measurement.drafters)))
    if brief:
        within = "" if budget_seconds is None else f" in {budget_seconds:g} s"
        prompts = _prompts(config).rpartition(", ")[0]
        return f"{names} on {_model(config.target, brief=True)}; {prompts}{within}."
    sizes = ", ".join(str(gamma) for gamma in sorted({*measurement.gammas, structure.gamma}))
    depth = "gamma" if structure.name == "chain" else f"{structure.name}, depth"
    parts = (f"{names} on {_model(config.target)}", _prompts(config), f"{depth} {sizes}", bound)
    return "; ".join(parts) + "."


def _model(target: dict[str, Any], brief: bool = False) -> str:
    """Return a target's model with format and device, as far as its configuration has them."""
    name = str(target.get("model", target["name"]))
    if "dtype" not in target or "device" not in target:
        return name
    device = resolve_device(target["device"])
    if brief:
        processor = _UNTOLD.sub("", cpu()["model"]) if device.type == "cpu" else ""
        where = f"{processor} ({counted(torch.get_num_threads(), 'thread')})" if processor else str(device)
        return f"{name} in {_dtype(target, device).partition(' (')[0]}, on {where}"
    where = str(device) if device.type != "cpu" else f"cpu ({counted(torch.get_num_threads(), 'thread')})"
    return f"{name} in {_dtype(target, device)}, on {where}"


def _dtype(target: dict[str, Any], device: torch.device) -> str:
    """Return the number format to compute in, and why."""
    named = resolve_dtype(target["dtype"])
    if named is not None:
        return f"{format_name(named)} (as target.dtype says)"
    own = _stored(model_path(str(target.get("model", ""))))
    if own is None:
        return "its own number format where this machine computes in it"
    found = model_arithmetic(None, own, device)
    if found.used == own:
        return f"{format_name(own)} (the model's own, in which this machine computes)"
    return f"{format_name(found.used)} (this machine would emulate {format_name(own)}, the model's own)"


def _stored(folder: str) -> torch.dtype | None:
    """Return the format that the configuration in a model's folder names; None where there is none."""
    try:
        values = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        found = getattr(torch, str(values.get("dtype") or values.get("torch_dtype")), None)
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, torch.dtype) else None


def _prompts(config: RunConfig) -> str:
    """Return which prompts are decoded, how many at most, and how far."""
    limit, tokens = config.prompts.get("limit"), config.measurement.max_new_tokens
    many = "all prompts" if limit is None else f"at most {limit} prompts"
    times = f", {config.measurement.repeats} times" if config.measurement.repeats > 1 else ""
    length = "whole texts" if tokens is None else f"{tokens} tokens each"
    return f"{many} of {config.prompts.get('name')}{times}, {length}"
