"""Products of one input become one product, and calls that are not compiled stay as they were."""

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

from specdec.compiled.joint_products import MergeEqual, lay_side_by_side
from specdec.models.decoder import Decoder
from specdec.records import chain_tree

SIZES = dict(vocab_size=61, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4)
SIZES |= dict(num_key_value_heads=2, bos_token_id=None, eos_token_id=None, pad_token_id=None)
PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["LlamaConfig", "Qwen2Config"])  # the latter adds a bias to queries, keys and values
def test_of_seven_products_a_layer_four_are_left(kind):
    import transformers

    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**SIZES)).double().eval()
    decoder = Decoder(model.requires_grad_(False), kind, 64)
    tokens = torch.arange(5)

    def logits():
        decoder.start([1, 2, 3], 16)
        return decoder.plain(tokens, chain_tree(4)).logits

    before = logits()
    numbers = sum(weight.numel() for weight in model.parameters())
    decoder.start([1], 16)
    for _ in range(2):  # the second time there is nothing left to do
        lay_side_by_side(decoder)
    assert torch.equal(logits(), before)
    assert sum(weight.numel() for weight in model.parameters()) == numbers
    attention = model.model.layers[0].self_attn
    assert attention.v_proj.weight.untyped_storage().data_ptr() == attention.q_proj.weight.untyped_storage().data_ptr()

    counts = []

    def merged(graph, inputs):
        for step in (lambda: None, lambda: MergeEqual()(graph.graph)):
            step()
            counts.append(sum(node.target in PRODUCTS for node in graph.graph.nodes))
        graph.recompile()
        return make_boxed_func(graph.forward)

    compiled = torch.compile(
        lambda given: model(given, use_cache=False).logits, backend=aot_autograd(fw_compiler=merged), fullgraph=True
    )
    expected = model(tokens[None], use_cache=False).logits
    torch.testing.assert_close(compiled(tokens[None]), expected, rtol=0, atol=1e-12)
    assert counts == [2 * 7 + 1, 2 * 4 + 1]
