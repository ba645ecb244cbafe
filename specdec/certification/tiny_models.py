"""Tiny random float64 models of all architectures, made on the spot, whose greedy texts do not repeat one token."""

from functools import cache
from typing import Any

import torch

VOCABULARY = 61
SIZES: dict[str, Any] = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
) | dict(max_position_embeddings=256, bos_token_id=None, eos_token_id=None, pad_token_id=None)
_GROUPED = dict(SIZES, num_key_value_heads=2)
_WINDOWED = dict(_GROUPED, head_dim=8, sliding_window=6)
# Text collapses where the output matrix is tied to a large embedding, because it repeats its input.
_GEMMA = dict(_WINDOWED, tie_word_embeddings=False)
_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _GROUPED),
    "qwen3": ("Qwen3Config", dict(_GROUPED, head_dim=8)),
    "gpt2": ("GPT2Config", {key: value for key, value in SIZES.items() if key != "intermediate_size"}),
    "gpt_neox": ("GPTNeoXConfig", SIZES),
    "opt": ("OPTConfig", dict(SIZES, ffn_dim=48, word_embed_proj_dim=32)),
    "mistral_window": ("MistralConfig", _WINDOWED),
    "phi3": ("Phi3Config", _GROUPED),
    "gemma3": ("Gemma3TextConfig", dict(_GEMMA, num_hidden_layers=3, layer_types=_MIXED)),
    "gemma2": ("Gemma2Config", dict(_GEMMA, attn_implementation="eager")),
    "gemma4": (
        "Gemma4TextConfig",
        dict(_GEMMA, num_hidden_layers=4, global_head_dim=16, sliding_window=3, num_kv_shared_layers=1)
        | dict(layer_types=[*_MIXED, "full_attention"], vocab_size_per_layer_input=VOCABULARY)
        | dict(hidden_size_per_layer_input=8),
    ),
    "llama4": (
        "Llama4TextConfig",
        dict(_GROUPED, num_hidden_layers=3, head_dim=8, attention_chunk_size=3, intermediate_size_mlp=48)
        | dict(layer_types=["chunked_attention", "full_attention", "chunked_attention"], num_local_experts=2),
    ),
    "deepseek_v32": (
        "DeepseekV32Config",
        dict(SIZES, num_key_value_heads=4, q_lora_rank=16, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=8)
        | dict(v_head_dim=8, index_topk=6, index_head_dim=16, n_routed_experts=4, num_experts_per_tok=2)
        | dict(n_group=1, topk_group=1, moe_intermediate_size=16, first_k_dense_replace=1)
        | dict(experts_implementation="eager"),  # torch groups no products in float64
    ),
}


@cache
def load_tiny_model(name: str) -> Any:
    """Return the model of a name in `ARCHITECTURES`, the same object at every call."""
    import transformers

    kind, values = ARCHITECTURES[name]
    config = getattr(transformers, kind)(**values)
    # As initialised, every logit is near 0 and greedy text collapses to one token: the weights are scaled up.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sum(name.encode()))
        model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False).double()
        model.eval().requires_grad_(False)
    for weight in model.parameters():
        weight.mul_(5.0 if weight.dim() > 1 else 3.0)
    return model
