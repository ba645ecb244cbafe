"""Quantised weights, by transformers' own integrations or in a GGUF file: what is asked for, and what is said of them.

A quantised model is another model than the one that it was made from: its own text is what a run is lossless to.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

import torch

from specdec.errors import UsageError, in_one_line
from specdec.models.arithmetic import format_name
from specdec.models.gguf_model import dequantised_form, unknown_cuts


def quantized_loading(values: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Return the options with which transformers quantises a model's weights as it reads them, by the values of one of
    its quantisation configurations, with `quant_method`, such as `{quant_method: bitsandbytes, load_in_4bit: true}`.
    Raises UsageError: a method that transformers does not know, values or a library that it refuses.
    """
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AutoQuantizationConfig

    if "quant_method" not in values:
        methods = ", ".join(sorted(AUTO_QUANTIZATION_CONFIG_MAPPING))
        raise UsageError(f"Bad value target.quantization: it needs a quant_method, one of {methods}.")
    try:
        config = AutoQuantizationConfig.from_dict(dict(values))
    except Exception as error:  # each integration raises its own types
        why = in_one_line(error)
        raise UsageError(f"Bad value target.quantization: transformers refuses it: {why}.") from None
    return {"quantization_config": config, "device_map": {"": device}}


def quantization_of(model: Any) -> dict[str, Any] | None:
    """Return the quantisation of a loaded model or of its checkpoint as plain values; None for dense weights."""
    config = getattr(model.config, "quantization_config", None)
    if config is None:
        return None
    values = config if isinstance(config, Mapping) else config.to_dict()
    plain: dict[str, Any] = json.loads(json.dumps(dict(values), default=str))
    return {key: value for key, value in plain.items() if value is not None and not key.startswith("_")}


def recorded_quantization(model: Any) -> dict[str, Any] | None:
    """Return the quantisation of a loaded model, also where its weights were dequantised as they were read."""
    form = dequantised_form(model)
    return quantization_of(model) if form is None else {"quant_method": "gguf", "weights": form, "dequantize": True}


def said_of_weights(model: Any, whose: Literal["target", "drafter"], name: str) -> tuple[str, ...]:
    """Return what a reader of a run has to know about a model's weights and its file."""
    values, form = quantization_of(model), dequantised_form(model)
    said = ""
    if form is not None:
        said = (
            f"The {whose}'s weights are those of a GGUF file in {form}, dequantised to {format_name(model.dtype)}: it "
            "is another model than the original, and its times are those of dense weights."
        )
    elif values is not None:
        said = (
            f"The {whose}'s weights are quantised ({quantization_in_words(values)}): it is another model than {name} "
            "as it was trained. Outputs are compared with those of the quantised model, and its speedups are its own."
        )
    return tuple(filter(None, (said, unknown_cuts(model))))


def quantization_in_words(values: Mapping[str, Any]) -> str:
    """Return a quantisation in a few words: "bitsandbytes, load_in_8bit"."""
    bits = [f"{values[key]} bits" for key in ("bits", "num_bits", "nbits") if isinstance(values.get(key), int)]
    chosen = [key for key in ("load_in_8bit", "load_in_4bit") if values.get(key) is True]
    kind = [str(values[key]) for key in ("weights", "fmt") if isinstance(values.get(key), str)]
    method = str(values.get("quant_method", "unknown method")).rpartition(".")[2].lower()
    return ", ".join([method, *bits, *chosen, *kind])
