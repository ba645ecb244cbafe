"""Traced passes in bfloat16 multiply by packed weights, and write the bits of the plain modules all the same."""

import gc

import pytest
import torch
from torch import Tensor
from torch.fx import symbolic_trace

from specdec.compiled import traced
from specdec.compiled.traced import _equal, pack_products, products

pytestmark = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()),
    reason="this processor has no bfloat16 products of oneDNN",
)
linear = torch._C._nn.linear  # as torch records it
BIASED, PLAIN = (48, 16, 32), (48, 32)  # outputs of the layers below


class Layers(torch.nn.Module):
    """Linear layers of one input with and without a bias, one behind them, and a product of two inputs."""

    def __init__(self, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.biased = torch.nn.ParameterList(torch.randn(size, 32).to(dtype) for size in BIASED)
        self.biases = torch.nn.ParameterList(torch.randn(size).to(dtype) for size in BIASED)
        self.plain = torch.nn.ParameterList(torch.randn(size, 32).to(dtype) for size in PLAIN)
        self.last = torch.nn.Parameter(torch.randn(24, sum(BIASED) + sum(PLAIN)).to(dtype))

    def forward(self, tokens: Tensor) -> Tensor:
        found = [linear(tokens, self.plain[number], None) for number in range(len(PLAIN))]
        found += [linear(tokens, self.biased[number], self.biases[number]) for number in range(len(BIASED))]
        last = linear(torch.cat(found, -1), self.last, None)
        return torch.cat([last, linear(tokens, tokens[0, :1].expand(48, -1), None)], -1)


PRODUCTS = len(BIASED) + len(PLAIN) + 1


def tokens(count: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(2, count, 32, generator=torch.Generator().manual_seed(count)).to(dtype)


def calls_of(record: torch.fx.GraphModule, function: object) -> int:
    return sum(node.target is function for node in record.graph.nodes)


def packed(*weights: Tensor) -> Tensor:
    found: Tensor = torch.ops.mkldnn._reorder_linear_weight(torch.cat(weights).detach())
    return found


def the_same_bits(weights: list[Tensor], biased: bool) -> bool:
    return _equal(weights, packed(*weights), biased)


@torch.inference_mode()
def test_stored_weights_are_packed_and_no_bit_changes():
    model = Layers()
    kinds = ((list(model.plain), False), (list(model.biased), True), ([model.last], False))
    if not all(the_same_bits(*kind) for kind in kinds):
        pytest.skip("on this processor packed weights give other bits, so not all are used")
    record = symbolic_trace(model)
    assert pack_products(record) == PRODUCTS
    assert calls_of(record, products) == 3, "one for those with a bias, one for those without, one for the last"
    assert calls_of(record, linear) == 1, "what the pass computes is no weight"
    for count in (1, 2, 7, 32, 33, 300):
        assert torch.equal(record(tokens(count)), model(tokens(count)))


@torch.inference_mode()
def test_calls_on_many_tokens_keep_the_plain_weights():
    weights, biases, sizes = list(Layers().plain), [None, None], list(PLAIN)
    doubled = packed(*(2 * weight for weight in weights))  # tells which of the two was used
    for count, factor in ((32, 2), (33, 1)):
        found = products(tokens(count), weights, biases, sizes, doubled, None)
        for weight, result in zip(weights, found, strict=True):
            torch.testing.assert_close(result, linear(tokens(count), factor * weight, None))


@torch.inference_mode()
@pytest.mark.parametrize("wrong", [1, 2])
def test_what_would_change_a_bit_stays_as_it_is(monkeypatch, wrong):
    """Alone, or only where it is one with others."""
    model, pack = Layers(), torch.ops.mkldnn._reorder_linear_weight
    if not all(the_same_bits([weight], False) for weight in (*model.plain, model.last)):
        pytest.skip("on this processor packed weights give other bits, so none is used")

    def repacked(weight: Tensor) -> Tensor:
        joined = len(weight) in (sum(BIASED), sum(PLAIN))
        return pack(weight * (1 + 2**-7) if joined or wrong == 1 else weight)

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", repacked)
    record = symbolic_trace(model)
    replaced = pack_products(record)
    assert replaced == 0 if wrong == 1 else replaced >= len(PLAIN) + 1
    assert calls_of(record, products) == replaced, "each alone"
    assert torch.equal(record(tokens(3)), model(tokens(3)))


@torch.inference_mode()
def test_other_types_and_scarce_memory_leave_all_as_it_is(monkeypatch):
    assert pack_products(symbolic_trace(Layers(torch.float32))) == 0
    monkeypatch.setattr(traced, "_equal", lambda *given: True)
    needed = 2 * (32 * (sum(BIASED) + sum(PLAIN)) + 24 * (sum(BIASED) + sum(PLAIN)))
    monkeypatch.setattr(traced, "available_bytes", lambda device: 4 * needed - 1)
    assert pack_products(symbolic_trace(Layers())) == 0
    monkeypatch.setattr(traced, "available_bytes", lambda device: 4 * needed)
    assert pack_products(symbolic_trace(Layers())) == PRODUCTS


@pytest.mark.slow
@torch.inference_mode()
def test_passes_of_one_model_share_the_copies_which_go_with_it(monkeypatch):
    gc.collect()  # of models of earlier tests
    model, before = Layers(), len(traced._packed)
    monkeypatch.setattr(traced, "_equal", lambda *given: True)
    records = [symbolic_trace(model), symbolic_trace(model)]
    assert [pack_products(record) for record in records] == [PRODUCTS] * 2
    assert len(traced._packed) == before + 3
    first, second = (dict(record.named_buffers()) for record in records)
    assert all(second[name] is value for name, value in first.items() if not name.endswith("bias"))
    del model, records, first, second
    gc.collect()
    assert len(traced._packed) <= before


def test_weights_that_were_written_to_are_packed_anew(monkeypatch):
    monkeypatch.setattr(traced, "_equal", lambda *given: True)
    model = Layers()
    pack_products(symbolic_trace(model))
    with torch.no_grad():
        model.last.mul_(2)
    record = symbolic_trace(model)
    pack_products(record)
    with torch.inference_mode():
        torch.testing.assert_close(record(tokens(3)), model(tokens(3)), rtol=0.02, atol=0.5)


@pytest.mark.slow
@torch.inference_mode()
def test_a_traced_model_in_bfloat16_is_the_plain_one_bit_by_bit(traced_opt):
    decoder, layers = traced_opt(torch.bfloat16)
    if all(the_same_bits([layer.weight], layer.bias is not None) for layer in layers):
        found = [choice.get("packed products") for choice in decoder.choices.values()]
        assert found == [len(layers)] * 2
