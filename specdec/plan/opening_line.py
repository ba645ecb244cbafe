"""The first line of a run: what is decoded, in which number format and why, on what, and for how long at most.

It is made of the plan, before a weight is read.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from specdec.analysis.sections import counted
from specdec.environment import cpu
from specdec.models.arithmetic import format_name, model_arithmetic
from specdec.models.gguf_model import gguf_metadata, stored_weights
from specdec.models.load import model_path, resolve_device, resolve_dtype
from specdec.models.model_files import is_gguf
from specdec.plan.plan import Plan
from specdec.text.writing import read_json

_UNTOLD = re.compile(r"\((R|TM)\)| CPU| Processor| @.*")  # parts of a processor's name that tell nothing


def opening_line(plan: Plan, *, brief: bool = False) -> str:
    """Return model, number format and its reason, device, prompts, drafts and time budget in one sentence.

    Args:
        brief: leave the reason, lengths, the drafts and the key of the budget out, and name the processor.
    """
    measurement, structure, seconds = plan.measurement, plan.chosen.structure, plan.budget_seconds
    names = ", ".join(dict.fromkeys((plan.chosen.method, *measurement.drafters)))
    limit, tokens = plan.prompts.config.limit, measurement.max_new_tokens
    many = "all prompts" if limit is None else f"at most {limit} prompts"
    times = f", {measurement.repeats} times" if measurement.repeats > 1 else ""
    prompts = f"{many} of {plan.prompts.config.name}{times}"
    if brief:
        within = "" if seconds is None else f" in {seconds:g} s"
        return f"{names} on {_model(plan, brief=True)}; {prompts}{within}."
    length = "whole texts" if tokens is None else f"{tokens} tokens each"
    sizes = ", ".join(str(gamma) for gamma in sorted({*measurement.gammas, structure.gamma}))
    depth = "gamma" if structure.name == "chain" else f"{structure.name}, depth"
    bound = (
        "no time budget"
        if seconds is None
        else f"time budget {seconds:g} s until the last prompt is decoded (measurement.budget_seconds; null: no bound)"
    )
    return f"{names} on {_model(plan)}; {prompts}, {length}; {depth} {sizes}; {bound}."


def _model(plan: Plan, brief: bool = False) -> str:
    """Return the target's model with format and device, as far as its configuration has them."""
    target = plan.target_values
    if "dtype" not in target or "device" not in target:
        return plan.model
    device = resolve_device(target["device"])
    dtype, where = _dtype(target, device), str(device)
    if device.type == "cpu":
        processor = (_UNTOLD.sub("", cpu()["model"]) if brief else "") or where
        where = f"{processor} ({counted(plan.measurement.threads or torch.get_num_threads(), 'thread')})"
    return f"{plan.model} in {dtype.partition(' (')[0] if brief else dtype}, on {where}"


def _dtype(target: Mapping[str, Any], device: torch.device) -> str:
    """Return the number format to compute in, and why."""
    named = resolve_dtype(target["dtype"])
    if named is not None:
        return f"{format_name(named)} (as target.dtype says)"
    name, own = model_path(str(target.get("model", ""))), None
    if is_gguf(name):
        form, own = stored_weights(gguf_metadata(name))
        if own is None:
            return f"float32 (to which the {form} weights of its file are dequantised)"
    if values := read_json(Path(name) / "config.json"):  # in the model's folder; not of a hub id or a GGUF file
        own = getattr(torch, str(values.get("dtype") or values.get("torch_dtype")), None)
    if not isinstance(own, torch.dtype):
        return "the model's own number format (float32 where this machine would emulate it)"
    found = model_arithmetic(None, own, device)
    if found.used == own:
        return f"{format_name(own)} (the model's own, in which this machine computes)"
    return f"{format_name(found.used)} (this machine would emulate {format_name(own)}, the model's own)"
