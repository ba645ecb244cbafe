"""Heads on disk: one safetensors file with their config and the hash of the weights that they were trained on."""

from pathlib import Path

import torch

from specdec.errors import UsageError
from specdec.heads.heads_config import HeadsConfig
from specdec.heads.network import Heads
from specdec.heads.trained_file import TrainedKind, shipped_file
from specdec.targets.base import Target

HEADS = TrainedKind("specdec.heads", HeadsConfig, "heads", "Heads", "heads", several=True)
read_heads, save_heads, shipped_heads = HEADS.read, HEADS.write, shipped_file


def load_heads(path: str | Path, target: Target) -> Heads:
    """Load heads for the target that they were trained on, in its dtype and on its device.

    Raises:
        UsageError: they were trained on other weights (both hashes are named), or the target has no hidden states.
    """
    stored = read_heads(path)
    hidden = target.hidden
    if stored.target != hidden.identity:
        raise UsageError(
            f"Heads drafter.model={path} were trained on a target whose weights have the hash {stored.target[:16]}; "
            f"this one's have {hidden.identity[:16]}: use the target that they were trained on, or train heads for "
            "this one with specdec.train."
        )
    embedding, output = hidden.embedding, hidden.output_layer
    with torch.device("meta"):  # makes no weights, because those of the file are assigned
        heads = Heads(stored.config, embedding, output)
    heads.load_state_dict(stored.weights, assign=True)
    return heads.to(target.device, output.dtype).eval().requires_grad_(False)


def state_offset(config: HeadsConfig, target: Target) -> int:
    """Return the layer whose states these heads read, counted down from the target's last (`HiddenStates`)."""
    return config.offset_of(target.hidden.layers)
