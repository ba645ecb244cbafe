"""llama.cpp as a peer: our greedy text on tiny models, fresh texts, our method's settings, refusals in a sentence. The
files that it is given are evaluated by their metadata and tensors alone.

The engine itself runs where llama-cpp-python is installed; a stand-in shows how it is driven everywhere.
"""

import sys
from copy import deepcopy
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from fixtures.loaded_models import random_model
from peers.gguf_reference import fields_of, logits, tensors_of
from peers.peers_at_work import GAMMA, KINDS, LONGEST, PROMPT, ours, work

from specdec.certification.tiny_models import SIZES
from specdec.peers import opened
from specdec.peers.base.contract import LeftOut
from specdec.peers.llama_cpp import LlamaCpp, settings, write_gguf
from specdec.targets.causal import Causal

gguf = pytest.importorskip("gguf", reason="GGUF files are written with gguf: pip install -e '.[llama-cpp]'")


class FakeLlama:
    """The part of `llama_cpp.Llama` that the peer uses. `models` has the model of each file by the file's name.

    Attributes:
        calls: what was done, in order: resets, draft models' proposals, closings.
    """

    models: dict = {}
    opened: list = []

    def __init__(self, path, draft_model=None, **options):
        self.name, self.draft_model, self.options = path.rpartition("/")[2], draft_model, options
        self.calls, self.closed = [], False
        FakeLlama.opened.append(self)

    def reset(self):
        self.calls.append("reset")

    def close(self):
        self.closed = True

    @torch.inference_mode()
    def generate(self, tokens, **sampling):
        self.calls.append(("generate", len(tokens), sampling))
        tokens = list(tokens)
        while True:
            if self.draft_model is not None:
                drafted = self.draft_model(np.array(tokens, dtype=np.intc))
                self.calls.append(("drafted", len(drafted)))
            logits = FakeLlama.models[self.name](torch.tensor([tokens])).logits
            tokens.append(int(logits[0, -1].argmax()))
            yield tokens[-1]


class FakeLookup:
    def __init__(self, max_ngram_size, num_pred_tokens):
        self.asked = (max_ngram_size, num_pred_tokens)

    def __call__(self, tokens, /, **options):
        return tokens[: self.asked[1]]


def install(monkeypatch, models):
    """Put the stand-in where `import llama_cpp` finds it."""
    FakeLlama.models, FakeLlama.opened = models, []
    package, speculative = ModuleType("llama_cpp"), ModuleType("llama_cpp.llama_speculative")
    for module in (package, speculative):
        module.__spec__ = ModuleSpec(module.__name__, None)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    package.Llama, package.llama_supports_gpu_offload = FakeLlama, lambda: False
    package.llama_speculative = speculative
    speculative.LlamaPromptLookupDecoding = FakeLookup
    monkeypatch.setattr("specdec.peers.llama_cpp.LlamaCpp.version", "llama-cpp-python 0")


@pytest.fixture(scope="module")
def models(tiny_model):
    return {"target.gguf": deepcopy(tiny_model("llama")).float(), "drafter.gguf": deepcopy(tiny_model("qwen3")).float()}


@pytest.fixture
def target(models, sampling):
    return Causal(models["target.gguf"], sampling(temperature=0.0))


@pytest.fixture
def engine(monkeypatch, models):
    return install(monkeypatch, models)


@pytest.mark.parametrize("own", [pytest.param(False, marks=pytest.mark.slow), True], ids=["stand-in", "llama.cpp"])
@pytest.mark.parametrize("name", KINDS)
def test_every_peer_writes_our_greedy_text(monkeypatch, target, models, name, own):
    if own:
        pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed: pip install -e '.[llama-cpp]'")
    else:
        install(monkeypatch, models)
    text = ours(target)
    with opened(["llama_cpp"], work(target, name, models["drafter.gguf"])) as others:
        assert {peer.name.removeprefix("llama_cpp."): peer.ours for peer in others.peers} == KINDS[name]
        others.tune(PROMPT, (), set())
        rows = [peer(PROMPT) for peer in others.peers]
        assert [row["generated_token_ids"] for row in rows] == [list(text)] * len(rows)
        described = others.describe(rows)
        assert [peer["failure"] for peer in described["peers"]] == [""] * len(rows)
        assert described["left_out"] == []
    assert own or all(each.closed for each in FakeLlama.opened)


def test_every_text_begins_afresh(engine, target, models):
    """llama-cpp-python would take the prompt from the cache of the generation before."""
    with opened(["llama_cpp"], work(target, "small_model", models["drafter.gguf"])) as others:
        (_, peer) = others.peers
        peer(PROMPT)
        peer(PROMPT)
        first, second = FakeLlama.opened  # the drafter is opened for its target, and nothing before it is asked
        assert first.name == "drafter.gguf" and second.name == "target.gguf"
        for each in (first, second):
            assert [call for call in each.calls if call == "reset"] == ["reset"] * 2
            assert each.calls[0] == "reset"
    with opened(["llama_cpp"], work(target, "small_model", models["drafter.gguf"])) as others:
        others.peers[1](PROMPT)
        drafted = [call[1] for call in FakeLlama.opened[-1].calls if call[0] == "drafted"]
        assert drafted and set(drafted) == {GAMMA}
    with opened(["llama_cpp"], work(target, "ngram", models["drafter.gguf"])) as others:
        others.peers[1](PROMPT)
        assert FakeLlama.opened[-1].draft_model.asked == (7, GAMMA)


def test_the_end_token_counts_and_nothing_after_it(engine, target, models):
    text = ours(target)
    target.end_tokens = frozenset({text[4]})
    with opened(["llama_cpp"], work(target)) as others:
        assert others.peers[0](PROMPT)["generated_token_ids"] == list(text[: text.index(text[4]) + 1])


def test_threads_cache_and_room_are_those_of_the_run(engine, target, models):
    found = settings(work(target))
    assert len(found) == 2 and {each.options["flash_attn"] for each in found} == {True, False}
    for each in found:
        assert each.options["n_threads"] == each.options["n_threads_batch"] == torch.get_num_threads()
        assert each.options["n_ctx"] >= LONGEST + GAMMA
        assert (each.options["type_k"], each.options["seed"]) == (0, 5)
    target.model = SimpleNamespace(dtype=torch.bfloat16)
    assert [each.options["type_v"] for each in settings(work(target))] == [30, 30, 1, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.7, "top_p": 0.9}, "before it applies the temperature"),
        ({"temperature": 0.7, "top_k": 3}, ""),
        ({"temperature": 0.0, "top_p": 0.9}, ""),
    ],
)
def test_only_laws_that_llama_cpp_has_are_compared(engine, models, sampling, changes, message):
    target = Causal(models["target.gguf"], sampling(**changes))
    with opened(["llama_cpp"], work(target)) as others:
        reasons = [each["reason"] for each in others.describe()["left_out"]]
        assert len(reasons) == bool(message) and all(message in reason for reason in reasons)
        for peer in others.peers:
            peer(PROMPT)
            options = FakeLlama.opened[-1].calls[-1][2]
            assert (options["temp"], options["top_k"]) == (changes["temperature"], changes.get("top_k", 0))
            assert (options["top_p"], options["min_p"], options["repeat_penalty"]) == (1.0, 0.0, 1.0)


def test_a_drafter_that_cannot_be_written_leaves_the_others(engine, target, models, tiny_model):
    asked = work(target, "small_model", models["drafter.gguf"])
    asked.drafter.model = tiny_model("gpt2")
    with opened(["llama_cpp"], asked) as others:
        assert [peer.name for peer in others.peers] == ["llama_cpp.generate"]
        (absent,) = others.describe()["left_out"]
        assert absent["peer"] == "llama_cpp.assisted" and "gpt2" in absent["reason"]


def test_what_is_not_installed_is_named_with_the_remedy(target, models, monkeypatch):
    monkeypatch.setattr(LlamaCpp, "needs", {"no_such_module": "llama-cpp-python", "gguf": "gguf"})
    with opened(["llama_cpp"], work(target)) as others:
        assert others.peers == []
        (absent,) = others.describe()["left_out"]
        assert absent["peer"] == "llama_cpp"
        assert "needs llama-cpp-python and gguf: pip install -e '.[llama-cpp]'." in absent["reason"]


def test_no_file_is_left_behind(engine, target, models, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt), opened(["llama_cpp"], work(target)):
        assert list(tmp_path.rglob("target.gguf"))
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


def written(model, path, longest=64):
    write_gguf(model, path, longest)
    return gguf.GGUFReader(path)


@pytest.fixture
def copy(tiny_model):
    return lambda name, dtype=torch.float32: deepcopy(tiny_model(name)).to(dtype)


LLAMA_3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Llama", {}),
        ("Llama", {"rope_parameters": {"rope_theta": 100.0, "rope_type": "linear", "factor": 4.0}}),
        ("Llama", {"rope_parameters": {"rope_theta": 100.0, "rope_type": "llama3", **LLAMA_3}}),
        ("Llama", {"attention_bias": True, "mlp_bias": True}),
        ("Mistral", {"sliding_window": None}),
        ("Qwen2", {"tie_word_embeddings": True}),
        ("Qwen3", {}),
    ],
)
def test_a_file_computes_what_the_model_computes(tmp_path, kind, changes):
    values = {**SIZES, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-2, **changes}
    model = random_model(f"{kind}Config", values).float()
    torch.manual_seed(1)
    for weight in model.parameters():
        weight.normal_(std=0.3)  # every one matters, biases and norms included
    with torch.inference_mode():
        expected = model.double()(torch.tensor([TOKENS])).logits[0]
    reader = written(model.float(), tmp_path / "m.gguf")
    assert (logits(reader, TOKENS) - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert ("output.weight" in tensors_of(reader)) != model.config.tie_word_embeddings, "tied ones are written once"


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "BF16"), (torch.float16, "F16"), (torch.float32, "F32")])
def test_matrices_keep_their_format_and_the_rest_is_float32(copy, tmp_path, dtype, name):
    model = copy("llama", dtype)
    reader = written(model, tmp_path / "m.gguf")
    kinds = {tensor.tensor_type.name for tensor in reader.tensors if len(tensor.shape) > 1}
    assert kinds == {name}
    assert {tensor.tensor_type.name for tensor in reader.tensors if len(tensor.shape) == 1} == {"F32"}
    embeddings, fields = tensors_of(reader)["token_embd.weight"], fields_of(reader)
    assert torch.equal(embeddings.to(dtype), model.get_input_embeddings().weight)
    assert (fields["tokenizer.ggml.model"], fields["vocab_size"]) == ("none", model.config.vocab_size)


@pytest.mark.parametrize(
    ("name", "dtype", "rope", "message"),
    [
        ("gpt2", torch.float32, {}, "model type gpt2 is not among"),
        ("llama", torch.float64, {}, "no place for weights in float64"),
        ("llama", torch.float32, {"rope_type": "dynamic"}, "type dynamic"),  # its frequencies change with the text
        ("mistral_window", torch.float32, {}, "sliding window"),
    ],
)
def test_models_that_would_differ_are_refused(copy, tmp_path, name, dtype, rope, message):
    model = copy(name, dtype)
    model.config.rope_parameters = (getattr(model.config, "rope_parameters", None) or {}) | rope
    with pytest.raises(LeftOut, match=message):
        write_gguf(model, tmp_path / "m.gguf", 10**6)
