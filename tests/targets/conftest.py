"""Targets of tiny models, for the tests of this folder."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specdec.targets.causal import Causal
from specdec.targets.encoder_decoder import EncoderDecoder


@pytest.fixture(scope="session")
def save_llama() -> Callable[..., None]:
    """`save_llama(folder, seed=0, vocab_size=64)` saves a random Llama in float32 that no token ends."""

    def save(folder: Path, seed: int = 0, **changes: int) -> None:
        torch.manual_seed(seed)
        shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
        shape |= {"vocab_size": 64, "max_position_embeddings": 256} | changes
        ends = dict.fromkeys(("eos_token_id", "bos_token_id", "pad_token_id"))
        LlamaForCausalLM(LlamaConfig(**shape, **ends)).save_pretrained(folder)

    return save


@pytest.fixture(scope="module")
def target_of(tiny_model, tiny_encoder_decoder, sampling) -> Callable[..., Any]:
    """`target_of("llama", "rows")`: temperature 1, so that every logit shows in p. Each is an object of its own."""

    @cache
    def make(name: str, evaluation: str = "packed") -> Any:
        if name.startswith("t5"):
            return EncoderDecoder(tiny_encoder_decoder(name), sampling(temperature=1.0))
        target = Causal(tiny_model(name), sampling(temperature=1.0))
        target.evaluation = evaluation
        return target

    return make
