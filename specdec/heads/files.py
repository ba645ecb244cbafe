"""Heads on disk: one safetensors file that says what they are made of and which weights they were trained on."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from specdec.config import validated
from specdec.errors import UsageError
from specdec.heads.config import HeadsConfig
from specdec.heads.model import Heads

if TYPE_CHECKING:
    from specdec.targets.base import Target

_KEY = "specdec.heads"


class Stored(NamedTuple):
    """A file's contents.

    Attributes:
        target: hash of the weights that the heads read (`Target.identity`).
        training: how they were made, as the trainer recorded it.
    """

    config: HeadsConfig
    target: str
    training: dict[str, Any]
    weights: dict[str, Tensor]


def shipped_heads(name: str) -> Path:
    """The file of heads that come with specdec, trained on the pocket target."""
    return Path(__file__).parents[1] / "pocket" / "heads" / f"{name}.safetensors"


def save_heads(heads: Heads, path: Path, target: str, training: dict[str, Any]) -> None:
    """Write the heads, folders included; a reader never sees half a file.

    Args:
        target: `Target.identity` of the target that they read.
        training: JSON values.
    """
    about = {"config": asdict(heads.config), "target": target, "training": training}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    weights = {name: weight.detach().cpu().contiguous() for name, weight in heads.state_dict().items()}
    save_file(weights, part, metadata={_KEY: json.dumps(about, sort_keys=True)})
    part.replace(path)


def read_heads(path: str | Path) -> Stored:
    """A file of `save_heads`, not yet held against any target.

    Raises:
        UsageError: no such file, or one of something else.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})[_KEY])
            weights = {name: file.get_tensor(name) for name in file.keys()}
        config = validated(HeadsConfig, about["config"], where="heads")
        return Stored(config, str(about["target"]), dict(about["training"]), weights)
    except FileNotFoundError:
        raise UsageError(
            f"Heads drafter.model={path} do not exist: give a file that specdec.train wrote, or pocket for those "
            "that come with specdec."
        ) from None
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, ValidationError):
        raise UsageError(
            f"Heads drafter.model={path} is not a file of heads: give the heads.safetensors that specdec.train wrote."
        ) from None


def load_heads(path: str | Path, target: "Target") -> Heads:
    """Heads for this very target, in its dtype and on its device, ready to draft.

    Raises:
        UsageError: trained on other weights; both hashes are named. A target without hidden states, or not as deep.
    """
    stored = read_heads(path)
    if stored.target != target.identity:
        raise UsageError(
            f"Heads drafter.model={path} were trained on a target whose weights have the hash {stored.target[:16]}; "
            f"this one's have {target.identity[:16]}: use the target that they were trained on, or train heads for "
            "this one with specdec.train."
        )
    heads = Heads(stored.config, target.embedding, target.output_layer)
    heads.load_state_dict(stored.weights)
    return heads.to(target.device, target.output_layer.dtype).eval().requires_grad_(False)


def state_offset(config: HeadsConfig, target: "Target") -> int:
    """The layer whose states these heads read, counted down from the target's last (`Target.keep_states`)."""
    return target.depth if config.state == "embeddings" else config.offset
