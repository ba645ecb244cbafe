"""Compiled passes against the eager one, on tiny models; the CUDA graph's step without its graph."""

from copy import deepcopy

import pytest
import torch

from specdec import compilation
from specdec.compilation import StaticStep, mode_for
from specdec.decoder import Decoder
from specdec.errors import UsageError
from specdec.records import chain_tree

TEXT = [5, 9, 33, 2, 60, 17, 9, 33, 41, 8, 5, 22, 7]
EXACT = 1e-12
FUSED = 1e-4  # Llama's norms are float32 whatever the model's type, and fusion sums them in another order


@torch.inference_mode()
def walk(decoder: Decoder, capacity: int = 64) -> torch.Tensor:
    """Logits of calls on 1, 3 and 2 rows behind a prefill, with rows taken back in between."""
    decoder.start(TEXT, capacity)
    calls = [([TEXT[-1]], 0), ([4, 9, 1], 2), ([30], 0), ([11, 12], 1), ([6, 2, 3], 3), ([8], 0)]
    logits = []
    for tokens, taken_back in calls:
        logits.append(decoder.forward(torch.tensor(tokens), chain_tree(len(tokens) - 1)).clone())
        decoder.length -= taken_back
    return torch.cat(logits)


@pytest.mark.parametrize("name", ["llama", "mistral_window", "gemma3"])
def test_static_shapes_give_the_logits_of_growing_ones(tiny_model, name):
    model = tiny_model(name)
    eager, static = Decoder(model, name, 512), Decoder(model, name, 512)
    # As `compile` does on a GPU, less the capture.
    static.compile({}, 64, "trace")
    for rows in (1, 3):
        static._steps[rows] = StaticStep(model, static.cache, rows, static._windows)
    assert (walk(eager) - walk(static)).abs().max() < EXACT
    assert static.cache.capacity == 512 and static.length == eager.length


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "tolerance"), [("trace", EXACT), ("inductor", FUSED)])
def test_it_gives_the_logits_of_the_eager_pass(tiny_model, mode, tolerance):
    """Two numbers of rows, several prefixes, a second text and one that is too long for the compiled cache."""
    model = tiny_model("llama")
    eager, compiled = Decoder(model, "llama", 512), Decoder(model, "llama", 512)
    compiled.compile({1, 3}, 64, mode)
    assert compiled.compiled == (1, 3)
    assert (walk(eager) - walk(compiled)).abs().max() < tolerance
    buffers = compiled.cache
    assert (walk(eager) - walk(compiled)).abs().max() < tolerance
    assert compiled.cache is buffers
    assert (walk(eager, 600) - walk(compiled, 600)).abs().max() < tolerance
    assert compiled.cache is not buffers
    assert (walk(eager) - walk(compiled)).abs().max() < tolerance
    assert compiled.cache is buffers, "the next short text is compiled again"


def test_without_a_compiler_true_is_refused_and_auto_goes_on(monkeypatch, caplog):
    cpu = torch.device("cpu")
    assert mode_for(True, cpu) == "inductor"
    monkeypatch.setattr(compilation, "_missing_program", lambda device: "a C++ compiler (g++ or clang++)")
    assert mode_for(False, cpu) is None and mode_for("trace", cpu) == "trace"
    with pytest.raises(UsageError, match=r"target\.compile=true: .*g\+\+.*target\.compile=auto") as refused:
        mode_for(True, cpu)
    assert refused.value.exit_code == 2
    assert mode_for("auto", cpu) == "trace"
    assert "traced, not compiled" in caplog.text


def test_the_compiler_is_looked_for(monkeypatch):
    from torch._inductor import config

    with config.patch({"cpp.cxx": ("no-such-compiler",)}):
        assert compilation._missing_program(torch.device("cpu")) is not None
    assert compilation._missing_program(torch.device("cuda")) is None


def test_a_model_that_decides_by_its_numbers_stays_eager_and_says_so(tiny_model, monkeypatch, caplog):
    """As models do that change their rotary frequencies beyond a length: one graph cannot hold both ways."""
    model = deepcopy(tiny_model("llama"))
    norm = model.model.norm.forward
    monkeypatch.setattr(model.model.norm, "forward", lambda x: norm(x) if float(x.sum()) < 1e9 else x)
    decoder = Decoder(model, "two-faced", 512)
    decoder.compile({1, 3}, 64, "trace")
    assert decoder.compiled == () and "two-faced cannot be traced" in caplog.text
    assert (walk(Decoder(model, "eager", 512)) - walk(decoder)).abs().max() < EXACT
