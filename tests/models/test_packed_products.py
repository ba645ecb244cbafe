"""Traced passes in bfloat16 multiply by packed weights, and write the bits of the plain modules all the same."""

import gc
from copy import deepcopy

import pytest
import torch

from specdec.models import packed_products
from specdec.models.decoder import Decoder
from specdec.models.packed_products import _equal, pack_products, product
from specdec.records import Tree, chain_tree

pytestmark = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()),
    reason="this processor has no bfloat16 products of oneDNN",
)
BIASES = 3  # of the layers below


class Layers(torch.nn.Module):
    """Linear layers with and without a bias, and a product of two inputs, as fx records them."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.biased = torch.nn.ParameterList(torch.randn(48, 32).to(dtype) for _ in range(BIASES))
        self.bias = torch.nn.Parameter(torch.randn(48).to(dtype))
        self.plain = torch.nn.Parameter(torch.randn(48, 32).to(dtype))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        total = torch._C._nn.linear(tokens, self.plain, None)
        for number in range(BIASES):
            total = total + torch._C._nn.linear(tokens, self.biased[number], self.bias)
        return total + torch._C._nn.linear(tokens, tokens[0, :1].expand(48, -1), None)


def recorded(model: Layers) -> torch.fx.GraphModule:
    return torch.fx.symbolic_trace(model)


def tokens(count: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(2, count, 32, generator=torch.Generator().manual_seed(count)).to(dtype)


def products_of(record: torch.fx.GraphModule) -> int:
    return sum(node.target is product for node in record.graph.nodes)


@torch.inference_mode()
def test_stored_weights_are_packed_and_no_bit_changes():
    model = Layers()
    packed = torch.ops.mkldnn._reorder_linear_weight(model.plain.detach())
    if not (_equal(model.plain, packed, False) and _equal(model.plain, packed, True)):
        pytest.skip("on this processor packed weights give other bits, so none is used")
    record = recorded(model)
    assert pack_products(record) == products_of(record) == 1 + BIASES, "what the pass computes is no weight"
    for count in (1, 2, 7, 40, 300):
        assert torch.equal(record(tokens(count)), model(tokens(count)))


@torch.inference_mode()
def test_calls_on_many_tokens_keep_the_plain_weight():
    model = Layers()
    packed = torch.ops.mkldnn._reorder_linear_weight(model.plain.detach() * 2)  # tells which of the two was used
    few, many = tokens(32), tokens(33)
    assert torch.allclose(product(few, model.plain, None, packed), torch._C._nn.linear(few, model.plain * 2, None))
    assert torch.equal(product(many, model.plain, None, packed), torch._C._nn.linear(many, model.plain, None))


@torch.inference_mode()
def test_what_would_change_a_bit_stays_as_it_is(monkeypatch):
    model = Layers()
    another = torch.ops.mkldnn._reorder_linear_weight(model.plain.detach() * (1 + 2**-7))
    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", lambda weight: another)
    record = recorded(model)
    assert pack_products(record) == products_of(record) == 0
    assert torch.equal(record(tokens(3)), model(tokens(3)))


@torch.inference_mode()
def test_other_types_and_scarce_memory_leave_all_as_it_is(monkeypatch):
    assert pack_products(recorded(Layers(torch.float32))) == 0
    needed = (1 + BIASES) * 48 * 32 * 2
    monkeypatch.setattr(packed_products, "_equal", lambda *given: True)
    monkeypatch.setattr(packed_products, "available_bytes", lambda device: 4 * needed - 1)
    assert pack_products(recorded(Layers())) == 0
    monkeypatch.setattr(packed_products, "available_bytes", lambda device: 4 * needed)
    assert pack_products(recorded(Layers())) == 1 + BIASES


@torch.inference_mode()
def test_passes_of_one_model_share_the_copies_which_go_with_it(monkeypatch):
    model, before = Layers(), len(packed_products._packed)
    packed = [recorded(model), recorded(model)]
    monkeypatch.setattr(packed_products, "_equal", lambda *given: True)
    monkeypatch.setattr(packed_products, "available_bytes", lambda device: None)
    for record in packed:
        assert pack_products(record) == 1 + BIASES
        assert len(packed_products._packed) == before + 1 + BIASES
    assert packed[0].packed_0 is packed[1].packed_0
    del model, packed, record
    gc.collect()
    assert len(packed_products._packed) <= before


@pytest.mark.slow
@torch.inference_mode()
@pytest.mark.parametrize("name", ["llama", "opt", "gpt_neox"])
def test_a_traced_model_in_bfloat16_is_the_plain_one_bit_by_bit(tiny_model, name):
    model = deepcopy(tiny_model(name)).to(torch.bfloat16)
    plain, traced = Decoder(model, name, 512), Decoder(model, name, 512)
    traced.compile({1, 5}, 120, "trace")
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    pack = torch.ops.mkldnn._reorder_linear_weight
    expected = sum(_equal(layer.weight, pack(layer.weight), layer.bias is not None) for layer in layers)
    assert [choice.get("packed products", 0) for choice in traced.choices.values()] == [expected] * 2
    for decoder in (plain, traced):
        decoder.start(list(range(3, 20)), 120)
    for tree in (chain_tree(0), chain_tree(4), Tree((-1, -1, 0, 1)), chain_tree(70)):
        roots = torch.arange(len(tree) + 1) % 50 + 3
        assert torch.equal(*(decoder.forward(roots, tree) for decoder in (plain, traced)))
        plain.length = traced.length = 16
