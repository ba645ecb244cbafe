"""Makes models with random weights from transformers configuration values, to time a shape without its weights."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import torch

from specdec.errors import UsageError, in_one_line, near_misses
from specdec.models.arithmetic import ARITHMETIC, model_arithmetic

RANDOM = "random"
_SEED = "seed"  # the only key of a shape that is not a transformers configuration value


def shape_hash(shape: Mapping[str, Any]) -> str:
    """Return the sha256 of shape and seed, which stands for the content of the weights."""
    return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()


def random_model(
    shape: Mapping[str, Any],
    *,
    dtype: torch.dtype | None,
    device: torch.device,
    attention: str,
    key: str = "target.shape",
) -> Any:
    """Make a transformers decoder in evaluation mode, initialised by its own rule, directly on the device, by a shape:
    `model_type`, `seed` and any values of that type's configuration. Messages name the configuration key of the shape.

    Without a dtype it is the shape's own `dtype` where the device computes in it, else float32; float32 without one.
    `attention` is transformers' implementation, or "auto". Raises UsageError: transformers refuses the shape, or this
    type of model does not have a key of it.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {name: value for name, value in shape.items() if name not in ("model_type", _SEED)}
    if not isinstance(shape.get("model_type"), str) or type(shape.get(_SEED)) is not int:
        raise UsageError(f"Bad value {key}: it should have a model_type, such as llama, and a seed.")
    try:
        # First without values, to learn the known keys: transformers accepts unknown ones, and they would do nothing.
        plain = AutoConfig.for_model(shape["model_type"])
        known = plain.to_dict().keys() | dict(plain.attribute_map).keys()
        for name in values:
            if name not in known:
                raise UsageError(
                    f"Unknown key {key}.{name}: {shape['model_type']} models have no such key."
                    + near_misses(name, sorted(known))
                )
        config = AutoConfig.for_model(shape["model_type"], **values)
        if attention == "auto":
            attention = "eager" if config.model_type == "gemma2" else "sdpa"  # as for loaded models
        arithmetic = model_arithmetic(dtype, config.dtype or torch.float32, device)
        options = {"dtype": arithmetic.used, "attn_implementation": attention}
        with torch.device("meta"):  # finds faults without allocating weights
            AutoModelForCausalLM.from_config(config, trust_remote_code=False, **options)
    except UsageError:
        raise
    except Exception as error:  # transformers raises some ten unrelated types here
        reason = in_one_line(error) or type(error).__name__
        raise UsageError(f"Bad value {key}: transformers refuses it: {reason}.") from None
    # transformers initialises from the global generator; its state is restored.
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.device(device):
        torch.manual_seed(shape[_SEED])
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False, **options)
    ARITHMETIC[model] = arithmetic
    return model.eval().requires_grad_(False)
