"""Heads on disk: one safetensors file with their config and the hash of the weights that they were trained on."""

import re
from pathlib import Path
from typing import Any

import torch

from specdec.errors import UsageError
from specdec.heads.heads_config import HeadsConfig
from specdec.heads.network import Heads
from specdec.heads.trained_file import TrainedFile, read_trained, write_trained
from specdec.targets.base import Target

KIND = "specdec.heads"
"""The kind of these files (`trained_file`)."""
_USUAL_PLACE = re.compile(r"(?:^|/)models/heads/(.+)/heads\.safetensors$")  # where a training writes the heads


def shipped_heads(name: str) -> Path:
    """Return the file of heads that come with specdec, trained on the pocket target."""
    return Path(__file__).parents[1] / "pocket" / "heads" / f"{name}.safetensors"


def save_heads(heads: Heads, path: Path, target: str, training: dict[str, Any]) -> None:
    """Write the heads, folders included; a reader never sees half a file.

    Args:
        target: `HiddenStates.identity` of the target that they read.
        training: JSON values.
    """
    write_trained(KIND, heads, path, target, training)


def read_heads(path: str | Path, key: str = "drafter.model") -> TrainedFile[HeadsConfig]:
    """Read a file of `save_heads`, without comparing it with any target.

    Args:
        key: configuration key of the file, for messages.
    Raises:
        UsageError: the file does not exist, or holds something else.
    """
    try:
        return read_trained(KIND, HeadsConfig, path)
    except FileNotFoundError:
        recipe = _USUAL_PLACE.search(Path(path).as_posix())
        remedy = (
            f"python -m specdec.train +heads={recipe[1]} makes them"
            if recipe
            else "give a file that specdec.train wrote, or in a drafter pocket for those that come with specdec"
        )
        raise UsageError(f"Heads {key}={path} do not exist: {remedy}.") from None
    except ValueError:
        raise UsageError(
            f"Heads {key}={path} is not a file of heads: give the heads.safetensors that specdec.train wrote."
        ) from None


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
