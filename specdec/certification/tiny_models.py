"""Tiny random float64 models of all architectures, made on the spot, whose greedy texts do not repeat one token."""

from functools import cache
from typing import Any

import torch

VOCABULARY = 61
SIZES = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=256,
    bos_token_id=None,
    eos_token_id=None,
    pad_token_id=None,
)
_GROUPED = dict(SIZES, num_key_value_heads=2)
_MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", _GROUPED),
    "qwen3": ("Qwen3Config", dict(_GROUPED, head_dim=8)),
    "gpt2": (
        "GPT2Config",
        dict(
            vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=256, bos_token_id=None, eos_token_id=None
        ),
    ),
    "gpt_neox": ("GPTNeoXConfig", SIZES),
    "opt": ("OPTConfig", dict(SIZES, ffn_dim=48, word_embed_proj_dim=32)),
    "mistral_window": ("MistralConfig", dict(_GROUPED, head_dim=8, sliding_window=6)),
    "phi3": ("Phi3Config", _GROUPED),
    "gemma3": (
        "Gemma3TextConfig",
        dict(
            _GROUPED, num_hidden_layers=3, head_dim=8, sliding_window=6, layer_types=_MIXED, tie_word_embeddings=False
        ),
    ),
    "gemma2": (
        "Gemma2Config",
        dict(_GROUPED, head_dim=8, sliding_window=6, attn_implementation="eager", tie_word_embeddings=False),
    ),
}


@cache
def load_tiny_model(name: str) -> Any:
    """Return the model of a name in `ARCHITECTURES`, the same object at every call."""
    import transformers

    kind, values = ARCHITECTURES[name]
    config = getattr(transformers, kind)(**values)
    # As initialised, every logit is near 0 and greedy text collapses to one token: the weights are scaled up.
    # Text also collapses where the output matrix is tied to a large embedding, because it repeats its input: Gemma's
    # output matrix is untied for this reason.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(sum(name.encode()))
        model = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False).double()
        model.eval().requires_grad_(False)
    for weight in model.parameters():
        weight.mul_(5.0 if weight.dim() > 1 else 3.0)
    return model
