"""The decoders that recipes train: a fresh one, and its export in the form that `from_pretrained` reads."""

from pathlib import Path

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from specdec.training.models.recipe import ModelConfig

INTO_RESIDUAL = ("o_proj.weight", "down_proj.weight", "c_proj.weight")


def _shape(config: ModelConfig, tokens: dict[str, int]) -> PretrainedConfig:
    """Return the shape of a Llama with tied embeddings, or of a GPT-2 without dropout and with embeddings of its own at
    both ends, so that the sizes are those of 2211.17192, section 4.1.
    """
    common = tokens | {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "max_position_embeddings": config.context,
        "tie_word_embeddings": config.architecture == "llama",
    }
    if config.architecture == "llama":
        return LlamaConfig(**common, intermediate_size=config.mlp_size, num_key_value_heads=config.heads)
    return GPT2Config(**common, n_inner=config.mlp_size, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)


def build_model(config: ModelConfig, vocabulary: int, end_of_text: int, seed: int) -> PreTrainedModel:
    """Build a fresh float32 decoder on the CPU; projections into the residual stream start at zero."""
    torch.manual_seed(seed)
    end = {name: end_of_text for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    model = AutoModelForCausalLM.from_config(
        _shape(config, {"vocab_size": vocabulary, **end}), trust_remote_code=False
    ).float()
    for name, parameter in model.named_parameters():
        if name.endswith(INTO_RESIDUAL):
            nn.init.zeros_(parameter)
    return model


def export_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the model in bfloat16 safetensors with its tokenizer, as `from_pretrained` reads them."""
    copy = type(model)(model.config)
    copy.load_state_dict(model.state_dict())
    copy.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
