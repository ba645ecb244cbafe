"""Traced passes may read a weight before they multiply by it; no bit of a result changes."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.fx import symbolic_trace

from specdec.compiled import traced
from specdec.compiled.traced import read_weights_first


class Layers(torch.nn.Module):
    """Two products by stored weights and one by a weight that the pass computes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = (torch.nn.Parameter(torch.randn(48, 32)) for _ in range(2))
        self.bias = torch.nn.Parameter(torch.randn(48))

    def forward(self, tokens: Tensor) -> Tensor:
        found = torch._C._nn.linear(tokens, self.first, self.bias) + torch._C._nn.linear(tokens, self.second, None)
        return torch._C._nn.linear(found, self.first.T, None)


class OneMore(Layers):
    """The same with a product by a given weight behind them."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.last = weight if isinstance(weight, torch.nn.Parameter) else torch.nn.Parameter(weight)

    def forward(self, tokens: Tensor) -> Tensor:
        return torch._C._nn.linear(super().forward(tokens)[..., : self.last.shape[1]], self.last, None)


def readings(record: torch.fx.GraphModule) -> dict[str, Tensor]:
    """Return the tensors that a record sums right before its products, by the names of these products."""
    nodes, found = list(record.graph.nodes), {}
    for node, following in zip(nodes, nodes[1:], strict=False):
        if node.op == "call_method" and node.target == "sum":
            found[following.name] = getattr(record, node.args[0].target)
    return found


@pytest.fixture
def all_faster(monkeypatch):
    """Every reading makes a product faster."""
    monkeypatch.setattr(traced, "_faster", lambda weights, *_: {weight.shape for weight in weights})


@torch.inference_mode()
@pytest.mark.parametrize(("tokens", "words"), [(1, 48 * 32 * 4 // 64), (5, 48 * 32 * 4 // 8)])
def test_one_word_of_each_line_or_all_are_read_right_before_the_product(all_faster, tokens, words):
    model = Layers()
    record = symbolic_trace(model)
    assert read_weights_first(record, tokens) == 2
    found = readings(record)
    assert sorted(found) == ["linear", "linear_1"], "the weight of linear_2 is computed"
    assert {read.numel() for read in found.values()} == {words}
    assert found["linear"].data_ptr() == model.first.data_ptr(), "a view, not a copy"
    assert torch.equal(found["linear"], model.first.flatten().view(torch.int64)[:: 8 if tokens == 1 else 1])
    for count in (1, 5):
        given = torch.randn(2, count, 32)
        assert torch.equal(record(given), model(given))


@torch.inference_mode()
def test_weights_that_cannot_be_read_in_words_are_not(all_faster, monkeypatch):
    class Named(torch.nn.Parameter):
        pass

    def read(weight: Tensor) -> bool:
        return read_weights_first(symbolic_trace(OneMore(weight)), 1) == 3

    assert read(torch.randn(24, 24))
    assert read(torch.randn(3, 2)), "part of a line"
    assert not read(torch.randn(24, 24).T), "not in one piece"
    assert not read(torch.randn(3, 3)), "half a word"
    assert not read(torch.randn(24 * 24 + 1)[1:].view(24, 24)), "begins within a word"
    assert not read(Named(torch.randn(24, 24))), "quantised, say"
    monkeypatch.setattr(traced, "_LARGEST", 48 * 32 * 4 - 1)
    assert read_weights_first(symbolic_trace(OneMore(torch.randn(24, 24))), 1) == 1


class Machine:
    """A machine on which a sum takes a second, and a product the time by its weight's rows and whether it was read."""

    def __init__(self, seconds: dict[int, tuple[float, float]]) -> None:
        self.now, self.products, self._seconds, self._read = 0.0, [], seconds, False

    def perf_counter(self) -> float:
        return self.now

    def words(self, weight: Tensor, stride: int) -> SimpleNamespace:
        return SimpleNamespace(sum=self._sum)

    def _sum(self) -> None:
        self.now += 1
        self._read = True

    def linear(self, inputs: Tensor, weight: Tensor) -> None:
        self.products.append((len(weight), tuple(inputs.shape)))
        alone, after = self._seconds[len(weight)]
        self.now += after if self._read else alone
        # Now and then something else runs, once more often without a reading than with one.
        self.now += 1000 * (len(self.products) in (2, 3, 11))
        self._read = False


@pytest.fixture
def machine(monkeypatch):
    def made(seconds: dict[int, tuple[float, float]]) -> Machine:
        machine = Machine(seconds)
        monkeypatch.setattr(traced, "time", machine)
        monkeypatch.setattr(traced, "linear", machine.linear)
        monkeypatch.setattr(traced, "_words", machine.words)
        return machine

    return made


def test_a_shape_is_read_where_reading_and_product_together_are_faster(machine):
    weights = [torch.zeros(rows, 4) for rows in (10, 20, 30)]
    found = machine({10: (20, 17.9), 20: (20, 18.5), 30: (20, 30)})
    assert traced._faster(weights, 5, 1) == {(10, 4)}, "18.9, 19.5 and 31 of 20 seconds: 19 are worth it"
    assert len(found.products) == 3 * 2 * 7 and set(found.products) == {(rows, (1, 5, 4)) for rows in (10, 20, 30)}


def test_what_is_not_timed_is_not_read(machine, monkeypatch):
    weights = [torch.zeros(rows, 4) for rows in (10, 20, 30)]
    machine(dict.fromkeys((10, 20, 30), (20, 2)))
    monkeypatch.setattr(traced, "_SAMPLE", 30 * 4 * 4)
    assert traced._faster(weights, 1, 8) == {(10, 4), (20, 4)}
    assert traced._faster([], 1, 8) == set()


@pytest.mark.slow
def test_a_traced_model_that_reads_first_is_the_plain_one_bit_by_bit(traced_opt, monkeypatch):
    monkeypatch.setattr(traced, "_WORTH", 1e9)
    decoder, layers = traced_opt(torch.float32)
    assert [choice["weights read first"] for choice in decoder.choices.values()] == [len(layers)] * 2
