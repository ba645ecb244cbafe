"""A model without some of its parts: its weights are the model's own, and its logits those of the equations."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from specdec.certification.tiny_models import ARCHITECTURES
from specdec.errors import UsageError
from specdec.models.decoder import Decoder, flops_per_token
from specdec.models.partial import ModelPart, block_parts, blocks_of, parse_parts, partial_model, written_parts
from specdec.models.probe import open_decoder

TOKENS = torch.tensor([[7, 3, 19, 44, 3, 19, 52, 7, 3, 1, 4]])


def test_lists_of_parts_are_read_and_written():
    parts = parse_parts([3, "5.attention", "1.mlp", "1.attention"])
    assert parts == block_parts([1, 3]) | {ModelPart(5, "attention")}
    assert written_parts(parts) == [1, 3, "5.attention"]
    assert parse_parts(written_parts(parts)) == parts
    for wrong in ("x", "3.", "3.norm", "-1", -1):
        with pytest.raises(ValueError, match="neither"):
            parse_parts([wrong])


@pytest.mark.parametrize("architecture", sorted(ARCHITECTURES.keys() - {"qwen3", "phi3"}))  # laid out as Llama
def test_the_first_layers_are_the_models_own(architecture, tiny_model):
    """Hidden states of a forward pass with all layers, then norm and output layer by hand."""
    model = tiny_model(architecture)
    layers = len(blocks_of(model, architecture))
    if architecture == "gemma4":
        with pytest.raises(UsageError, match="embeddings for each of its layers"):
            partial_model(model, block_parts([1]), architecture)
        return
    before = model(TOKENS, use_cache=False, output_hidden_states=True)
    weights, seen = {weight.data_ptr() for weight in model.parameters()}, []
    for first in range(1, layers):
        part = partial_model(model, block_parts(range(first, layers)), architecture)
        assert {weight.data_ptr() for weight in part.parameters()} <= weights
        handle = part.get_output_embeddings().register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
        logits = part(TOKENS, use_cache=False).logits
        handle.remove()
        norm = [module for name, module in model.named_modules() if name.split(".")[-1] in NORMS and "." in name]
        torch.testing.assert_close(seen[-1], norm[-1](before.hidden_states[first]), atol=1e-12, rtol=0)
        if first == 1 and architecture in ("llama", "gemma3", "llama4"):  # windows and chunks move with their layers
            open_decoder(Decoder(part, architecture, 4))
        assert flops_per_token(part) < flops_per_token(model)
        assert not torch.equal(logits, before.logits)
    after = model(TOKENS, use_cache=False, output_hidden_states=True)
    assert torch.equal(before.logits, after.logits) and len(after.hidden_states) == layers + 1
    assert len(blocks_of(model, architecture)) == layers == model.config.num_hidden_layers


NORMS = ("norm", "ln_f", "final_layer_norm")


def test_windows_stay_with_their_layers(tiny_model):
    """Gemma 3 mixes kinds of attention: skipping its first layer moves the others, and each keeps its window."""
    model = tiny_model("gemma3")
    part = partial_model(model, block_parts([0]), "gemma3")
    assert part.config.layer_types == model.config.layer_types[1:] == ["full_attention", "sliding_attention"]
    long = torch.arange(40).unsqueeze(0)
    states = model.model.embed_tokens(long)
    whole = model.model
    for index in (1, 2):
        kind = model.config.layer_types[index]
        behind = torch.arange(40)[:, None] - torch.arange(40)
        seen = (behind >= 0) & (behind < (6 if kind == "sliding_attention" else 40))
        mask = torch.zeros(1, 1, 40, 40).double().masked_fill(~seen, torch.finfo(torch.float64).min)
        places = torch.arange(40).unsqueeze(0)
        rotary = whole.rotary_emb(states, places, kind)
        states = whole.layers[index](states, attention_mask=mask, position_embeddings=rotary, position_ids=places)
    plain = model.lm_head(whole.norm(states))
    torch.testing.assert_close(part(long, use_cache=False).logits, plain, atol=1e-10, rtol=0)


def test_what_cannot_be_skipped_is_refused(tiny_model):
    for name, parts, message in (
        ("llama", ["0.attention", "1.attention"], "no attention left"),
        ("opt", ["0.mlp"], "no mlp as a module of its own"),
    ):
        with pytest.raises(UsageError, match=message):
            partial_model(tiny_model(name), parse_parts(parts), name)


def test_an_unknown_layout_is_refused():
    class Odd(nn.Module):
        config = SimpleNamespace(model_type="odd", get_text_config=lambda: SimpleNamespace(num_hidden_layers=2))

    with pytest.raises(UsageError, match=r"Model m \(odd\) keeps its layers in a way"):
        blocks_of(Odd(), "m")
