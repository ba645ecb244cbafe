"""Writes a loaded transformers model as a GGUF file, the format of llama.cpp, in the format that it computes in.

Only token ids pass, so the file has no vocabulary. Architectures: those whose tensors llama.cpp knows by the same
parts as transformers; others are refused.
"""

import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from specdec.peers.base.contract import LeftOut

ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
"""transformers' `model_type` -> llama.cpp's architecture."""

_DTYPES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def write_gguf(model: Any, path: Path, longest: int) -> None:
    """Write a model's weights and shape.

    Args:
        longest: the most tokens of a text that it will be used for.
    Raises:
        LeftOut: a model that llama.cpp would compute differently, or does not know.
    """
    import gguf

    logging.getLogger("gguf").setLevel(logging.WARNING)  # it tells every file that it writes
    config = model.config.get_text_config()
    name = _checked(model, config, longest)
    arch = next(key for key, value in gguf.MODEL_ARCH_NAMES.items() if value == name)
    factors = _rope_factors(model, config, name)
    writer = gguf.GGUFWriter(path, name)
    kinds = {"F32": "ALL_F32", "BF16": "MOSTLY_BF16", "F16": "MOSTLY_F16"}
    head = _head_size(config)
    writer.add_file_type(getattr(gguf.LlamaFileType, kinds[_DTYPES[model.dtype]]))
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("none")
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for key, weight in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue  # llama.cpp takes the embeddings where there is no output matrix
        projection = key.split(".")[-2]
        if name == "llama" and projection in heads:
            weight = interleaved(weight, heads[projection])
        found = names.get_name(key, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise LeftOut(f"llama.cpp has no place for the weight {key} of model type {config.model_type}.")
        _add(writer, gguf, found, weight.detach().cpu())
    if factors is not None:
        _add(writer, gguf, "rope_freqs.weight", factors)
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()


def _checked(model: Any, config: Any, longest: int) -> str:
    """Return llama.cpp's name of the architecture.

    Raises:
        LeftOut: it is unknown there, or would be computed in another way.
    """
    kind = config.model_type
    windowed = getattr(config, "use_sliding_window", True)
    window = (getattr(config, "sliding_window", None) if windowed else None) or longest
    dtypes = {weight.dtype for weight in model.parameters() if weight.dim() > 1}
    for fault, reason in (
        (kind not in ARCHITECTURES, f"the model type {kind} is not among those written as GGUF: "
         f"{', '.join(ARCHITECTURES)}"),
        (len(dtypes) != 1 or not dtypes <= set(_DTYPES), f"GGUF has no place for weights in "
         f"{' and '.join(sorted(str(each).removeprefix('torch.') for each in dtypes))}: use target.dtype=float32, "
         "bfloat16 or float16"),
        (getattr(config, "hidden_act", "silu") != "silu", "llama.cpp computes this architecture with silu only"),
        (window < longest, f"texts are longer than the sliding window of {window} tokens, which "
         "llama.cpp's architecture llama ignores"),
        (any(weight.device.type == "meta" for weight in model.parameters()), "the target's weights are not in memory"),
    ):  # fmt: skip
        if fault:
            raise LeftOut(f"{reason}.")
    return ARCHITECTURES[kind]


def interleaved(weight: Tensor, heads: int) -> Tensor:
    """Return the rows [heads * D, ...] of a projection in the order that llama.cpp's architecture llama rotates.

    transformers rotates row i of a head with row i + D / 2, llama.cpp there row 2 i with row 2 i + 1.
    """
    halves = weight.unflatten(0, (heads, 2, -1))  # [heads, 2, D / 2, ...]
    return halves.transpose(1, 2).reshape(weight.shape)


def _rope_factors(model: Any, config: Any, name: str) -> Tensor | None:
    """Return what each frequency [D / 2] of the rotary embedding is divided by, or None for nothing.

    Raises:
        LeftOut: frequencies that change with the text, scale the attention, or that the architecture does not take.
    """
    rope = config.rope_parameters
    kind = rope.get("rope_type", "default")
    rotary = next(module for module in model.modules() if hasattr(module, "inv_freq"))
    frequencies = rotary.inv_freq.detach().cpu().double()
    size = 2 * len(frequencies)
    plain = kind == "default"
    fits = size == _head_size(config) and rotary.attention_scaling == 1.0
    if not fits or not plain and (name != "llama" or kind not in ("linear", "llama3")):
        raise LeftOut(f"rotary embeddings of type {kind} over {size} dimensions are not written as GGUF.")
    if plain:
        return None
    steps = torch.arange(0, size, 2, dtype=torch.float64) / size
    return (1.0 / (frequencies * rope["rope_theta"] ** steps)).float()


def _head_size(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _add(writer: Any, gguf: Any, name: str, weight: Tensor) -> None:
    if weight.dim() == 1:
        weight = weight.float()  # llama.cpp has norms, biases and factors in float32
    if weight.dtype == torch.bfloat16:
        raw = weight.contiguous().view(torch.uint8).numpy()
        writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
    else:
        writer.add_tensor(name, weight.contiguous().numpy())
