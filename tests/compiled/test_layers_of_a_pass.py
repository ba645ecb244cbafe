"""A pass cut into programs, walked in Python: the calls give what the model gives."""

from copy import deepcopy

import pytest
import torch

from specdec.compiled import layers
from specdec.compiled.layers import cut, with_tensors
from specdec.models.decoder import Decoder
from specdec.models.partial import ModelPart, partial_model
from specdec.records import Tree, chain_tree

TEXT = [5, 9, 33, 2, 60, 17, 9, 33, 41, 8, 5, 22, 7]
EXACT = 1e-12
# Kinds of layers, one by one and in pairs. To cut a model takes seconds: a Llama without some parts, whose layers
# without attention have no part of the cache, is that of the first tier. The layers of Gemma 4 and of DeepSeek V3.2
# share keys, or choose what they read: they are not cut.
KINDS = {"partial llama": (2, 1), "gpt2": (1, 1), "gemma2": (2, 1), "llama4": (1, 1), "opt": (1, 1)}
SKIPPED = [ModelPart(0, "mlp"), ModelPart(1, "attention")]


@torch.no_grad()
def walked(calls, decoder, tokens, tree):
    """Logits and states of tokens behind the cache's prefix, by the calls alone."""
    prefix = decoder.length
    values = {"tokens": tokens[None], "places": (tree.offsets + prefix)[None]}
    values |= {
        kind: mask.contiguous() for kind, mask in decoder.masks.view(tree, prefix, decoder.cache.capacity).items()
    }
    for call in calls:
        inputs = with_tensors(decoder.model, decoder.cache, call.inputs)
        given = [values[each] if isinstance(each, str) else each for each in inputs]
        values |= zip(call.outputs, call.program(*given), strict=True)
    return values


def check_calls(calls, decoder):
    """See that calls make the logits and states of the plain pass, and write the same into the cache."""
    width = decoder.model.get_input_embeddings().weight.shape[1]
    for tree, prefix in ((chain_tree(4), 0), (chain_tree(0), 5), (Tree((-1, -1, 0, 2)), 9), (chain_tree(10), 3)):
        tokens = torch.arange(len(tree) + 1) * 11 % 61
        with torch.no_grad():
            decoder.length = prefix
            plain = decoder.plain(tokens, tree)
            decoder.length = prefix
            values = walked(calls, decoder, tokens, tree)
            for layer in decoder.cache.layers:
                layer.length = prefix + len(tokens)
            behind = decoder.plain(tokens[:1], chain_tree(0)).logits
            decoder.length = prefix
            decoder.plain(tokens, tree)
            assert (decoder.plain(tokens[:1], chain_tree(0)).logits - behind).abs().max() < EXACT, "what was written"
        assert (values["logits"][0] - plain.logits).abs().max() < EXACT
        for place, offset in enumerate(decoder.kept):
            states = values["states" if offset == 0 else f"states {decoder.layers - offset}"]
            assert (states[0] - plain.states[:, place * width : (place + 1) * width]).abs().max() < EXACT


@pytest.mark.parametrize(
    "architecture", [pytest.param(name, marks=pytest.mark.slow if " " not in name else ()) for name in KINDS]
)
@pytest.mark.parametrize("kept", [(0, 1), (0,)], ids=["one_by_one", "in_pairs"])
def test_the_calls_are_the_pass(tiny_model, monkeypatch, architecture, kept):
    cached = len(kept) == 1  # what programs are told of the model's size
    monkeypatch.setattr(layers, "_CACHED", layers._CACHED if cached else 0)
    model = tiny_model(architecture.removeprefix("partial "))
    decoder = Decoder(partial_model(model, SKIPPED, "llama") if " " in architecture else model, architecture, 512)
    decoder.keep_states(kept)
    with torch.no_grad():
        decoder.start(TEXT, 64)
    calls = cut(decoder, decoder.cache)
    pairs = len(kept) == 1 and decoder.layers % 2 == 0  # two are a program where nobody reads the states between
    assert len(calls) - 3 == decoder.layers / (1 + pairs)
    assert len({id(call.program) for call in calls}) == 3 + KINDS[architecture][pairs]
    products = [line for call in calls for line in call.program.code.splitlines() if "specdec.products" in line]
    assert products and all(f", {cached});" in line for line in products)
    check_calls(calls, decoder)


@pytest.mark.slow
def test_pairs_of_other_kinds_of_masks_are_other_programs(tiny_model):
    config = deepcopy(tiny_model("gemma2").config)
    config.num_hidden_layers, config.layer_types = 6, [*["sliding_attention"] * 5, "full_attention"]
    model = type(tiny_model("gemma2"))(config).double().eval()
    for block in model.model.layers:  # which mask a layer is given is then all in which it differs
        block.self_attn.sliding_window, block.self_attn.layer_type = 8, "sliding_attention"
    decoder = Decoder(model, "gemma", 512)
    with torch.no_grad():
        decoder.start(TEXT, 64)
    calls = cut(decoder, decoder.cache)
    first, second, third = (call.program for call in calls[1:-1])
    assert first is second and second is not third
    check_calls(calls, decoder)


def test_something_between_the_layers_is_said(tiny_llama):
    model = tiny_llama(64)
    decoder = Decoder(model, "between", 512)
    with torch.no_grad():
        decoder.start(TEXT, 64)
    first, forward = model.model.layers[0], type(model.model.layers[0]).__call__
    model.model.layers[0].__class__ = type("Scaled", (type(first),), {"__call__": lambda *a, **o: forward(*a, **o) * 2})
    with pytest.raises(ValueError, match="between its layers"):
        cut(decoder, decoder.cache)
