"""The kernels for a GPU do what the models' own modules do, by Triton's interpreter: on a CPU, in float32.

Triton is no part of an installation without a GPU, and takes its interpreter at its import:

    pip install triton && TRITON_INTERPRET=1 python -m pytest -n 0 tests/compiled/test_fused_layers.py
"""

import importlib.util
import os

import pytest
import torch
from fixtures.loaded_models import random_model

from specdec.certification.tiny_models import SIZES
from specdec.compiled.cuda_graphs import Choice, StaticLoop, StaticStep
from specdec.compiled.passes import compile_decoder
from specdec.models.decoder import Decoder
from specdec.records import Tree, chain_tree

if importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("Triton is not installed, or not to be interpreted (TRITON_INTERPRET=1)", allow_module_level=True)

from specdec.compiled import fused_layers

TOLERANCE = 1e-5  # of float32 sums in another order, over the largest logit
KINDS = {  # what each adds: heads that share keys; biases; norms of queries and keys; no more than Llama
    "LlamaConfig": {"num_key_value_heads": 2},
    "Qwen2Config": {"num_key_value_heads": 2},
    "Qwen3Config": {"num_key_value_heads": 4, "head_dim": 32},
    "MistralConfig": {"num_key_value_heads": 1, "sliding_window": None},
}


@pytest.fixture
def decoder():
    """Makes a decoder over a free cache, all of whose states are kept."""

    @torch.inference_mode()
    def make(kind="LlamaConfig", **more):
        values = SIZES | dict(hidden_size=128, intermediate_size=192, num_attention_heads=4, vocab_size=64)
        values |= dict(num_hidden_layers=2, max_position_embeddings=160) | KINDS[kind] | more
        made = Decoder(random_model(kind, values, 3, matrices=1.0, vectors=1.0).float(), kind, 512)
        made.keep_states((0, 1, 2))
        compile_decoder(made, (), 256, "trace")  # makes the cache
        return made

    return make


def fused(call, decoder):
    assert call.fuse(decoder)
    return call


@torch.inference_mode()
@pytest.mark.parametrize("size", [1, 5])
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_is_that_of_the_modules(decoder, kind, size):
    """Logits, at the end of the cache and of the context: of a chain, of a tree and of fewer tokens."""
    made = decoder(kind)
    assert fused(StaticStep(made, size), made).departure(made) < TOLERANCE


@torch.inference_mode()
def test_a_wide_call_has_larger_tiles(decoder):
    made = decoder()
    assert fused(StaticStep(made, 17), made).departure(made) < TOLERANCE


@torch.inference_mode()
def test_what_is_written_is_what_later_calls_read(decoder):
    """Behind a call of ours the modules go on as behind their own, and states of all layers are theirs."""
    made, tokens, further = decoder(), torch.tensor([4, 9, 2, 33, 8]), torch.tensor([7, 21])
    tree, found = Tree((-1, -1, 0, 0)), []
    step = fused(StaticStep(made, 5), made)
    for ours in (False, True):
        made.start([5, 9, 33, 2, 60, 17], 200)
        result = step(tokens, 5, tree) if ours else made.plain(tokens, tree)
        read = [result.logits.clone(), result.states.clone()]
        made.cache.commit(6, [6, 8])  # the path of nodes 0 and 2
        found.append([*read, made.plain(further, chain_tree(1)).logits.clone()])
    for plain, ours in zip(*found, strict=True):
        assert (plain - ours).abs().max() < TOLERANCE * plain.abs().max()


@torch.inference_mode()
def test_a_draft_is_that_of_single_calls(decoder):
    made = decoder()

    def choose(logits, uniform):
        token = logits.argmax(-1)
        return Choice(token, token, None)

    loop = fused(StaticLoop(made, 4, choose), made)
    assert loop.departure(made) < TOLERANCE
    made.start([5, 9, 33, 2, 60, 17], 200)
    drafted = loop([60, 17], 4, None).tokens.tolist()
    made.start([5, 9, 33, 2, 60, 17], 200)
    singles, token = [], 17
    for _ in range(4):
        token = int(made.plain(torch.tensor([token]), chain_tree(0)).logits.argmax())
        singles.append(token)
    assert drafted == singles


@torch.inference_mode()
@pytest.mark.parametrize(
    "other",
    [
        {"hidden_act": "gelu"},
        {"mlp_bias": True},
        {"vocab_size": 61},
        {"kind": "MistralConfig", "sliding_window": 64},
    ],
)
def test_other_models_are_left_to_the_compiler(decoder, other):
    made = decoder(**other)
    assert not StaticStep(made, 5).fuse(made)


@torch.inference_mode()
def test_long_calls_long_texts_and_float16_are_left_to_the_compiler(decoder, monkeypatch):
    made = decoder()
    assert fused_layers.fuses(made, 64) and not fused_layers.fuses(made, 65)
    monkeypatch.setattr(fused_layers, "_MOST_SLOTS", 255)
    assert not fused_layers.fuses(made, 5)
    monkeypatch.undo()
    made.model.half()
    assert not fused_layers.fuses(made, 5)
