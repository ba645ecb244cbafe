"""The function that OpenVINO's model is made from, without OpenVINO: what a model computes behind given keys and
values.
"""

import pytest
import torch

from specdec.models.decoder import attention_windows
from specdec.peers.openvino import _example, _Graph, written_bytes


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3"])
def test_a_call_behind_keys_and_values_is_a_plain_forward(tiny_model, name):
    """Two calls, of 4 and 3 tokens: in between the two sequences swap places, as `beam_idx` says."""
    model = tiny_model(name)
    graph = _Graph(model, attention_windows(model.config, name))
    shapes = graph.state_shapes()
    tokens = torch.arange(14).view(2, 7) + 1
    with torch.no_grad():
        expected = model(input_ids=tokens).logits
        places = torch.arange(7).expand(2, -1)
        ones, same = torch.ones(2, 7, dtype=torch.long), torch.tensor([0, 1], dtype=torch.int32)
        empty = (torch.zeros(2, heads, 0, size, dtype=torch.float64) for heads, size in shapes)
        first, *past = graph(tokens[:, :4], ones[:, :4], places[:, :4], same, *empty)
        assert [(each.shape[1], each.shape[3]) for each in past] == shapes
        second, *_ = graph(tokens.flip(0)[:, 4:], ones, places[:, 4:], same.flip(0), *past)
    assert torch.allclose(first, expected[:, :4], atol=1e-9)
    assert torch.allclose(second.flip(0), expected[:, 4:], atol=1e-9)


def test_the_example_has_no_two_sizes_that_are_equal(tiny_model):
    """Tracing would take them for one."""
    tokens, mask, places, beams, keys, *_ = _example([(2, 8)])
    assert tokens.shape == places.shape and mask.shape[1] == tokens.shape[1] + keys.shape[2]
    assert len({tokens.shape[0], tokens.shape[1], keys.shape[2], mask.shape[1]}) == 4
    assert (len(beams), keys.shape[0]) == (2, 2) and places[0].tolist() == list(range(3, 8))
    assert written_bytes(tiny_model("llama")) == 4 * sum(each.numel() for each in tiny_model("llama").parameters())
