"""GGUF files against the models that they were written from, evaluated by their metadata and tensors alone."""

from copy import deepcopy

import pytest
import torch
from peers.gguf_reference import fields_of, logits, tensors_of

from specdec.certification.tiny_models import SIZES
from specdec.peers.base.contract import LeftOut
from specdec.peers.llama_cpp import write_gguf

gguf = pytest.importorskip("gguf", reason="GGUF files are written with gguf: pip install -e '.[llama-cpp]'")
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


def written(model, path, longest=64):
    write_gguf(model, path, longest)
    return gguf.GGUFReader(path)


@pytest.fixture
def copy(tiny_model):
    return lambda name, dtype=torch.float32: deepcopy(tiny_model(name)).to(dtype)


def random_model(kind, **changes):
    """A model of a kind whose every weight, biases and norms included, matters."""
    import transformers

    values = {**SIZES, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-2, **changes}
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, f"{kind}Config")(**values))
    for weight in model.parameters():
        weight.requires_grad_(False).normal_(std=0.3)
    return model


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
    model = random_model(kind, **changes)
    with torch.inference_mode():
        expected = model.double()(torch.tensor([TOKENS])).logits[0]
    found = logits(written(model.float(), tmp_path / "m.gguf"), TOKENS)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "BF16"), (torch.float16, "F16"), (torch.float32, "F32")])
def test_matrices_keep_their_format_and_the_rest_is_float32(copy, tmp_path, dtype, name):
    model = copy("llama", dtype)
    reader = written(model, tmp_path / "m.gguf")
    kinds = {tensor.tensor_type.name for tensor in reader.tensors if len(tensor.shape) > 1}
    assert kinds == {name}
    assert {tensor.tensor_type.name for tensor in reader.tensors if len(tensor.shape) == 1} == {"F32"}
    embeddings = tensors_of(reader)["token_embd.weight"]
    assert torch.equal(embeddings.to(dtype), model.get_input_embeddings().weight)


def test_tied_embeddings_are_written_once(tiny_llama, tmp_path):
    model = tiny_llama(16).float()
    names = {tensor.name for tensor in written(model, tmp_path / "a.gguf").tensors}
    assert "output.weight" in names
    model.config.tie_word_embeddings = True
    names = {tensor.name for tensor in written(model, tmp_path / "b.gguf").tensors}
    assert "output.weight" not in names


def test_the_file_has_no_vocabulary_but_its_size(copy, tmp_path):
    model = copy("llama")
    fields = fields_of(written(model, tmp_path / "m.gguf"))
    assert (fields["tokenizer.ggml.model"], fields["vocab_size"]) == ("none", model.config.vocab_size)


@pytest.mark.parametrize(
    ("name", "dtype", "message"),
    [
        ("gpt2", torch.float32, "model type gpt2 is not among"),
        ("llama", torch.float64, "no place for weights in float64"),
        ("mistral_window", torch.float32, "sliding window"),
    ],
)
def test_models_that_would_differ_are_refused(copy, tmp_path, name, dtype, message):
    with pytest.raises(LeftOut, match=message):
        write_gguf(copy(name, dtype), tmp_path / "m.gguf", 10**6)


def test_frequencies_that_change_with_the_text_are_refused(copy, tmp_path):
    model = copy("llama")
    model.config.rope_parameters = {**model.config.rope_parameters, "rope_type": "dynamic"}
    with pytest.raises(LeftOut, match="type dynamic"):
        write_gguf(model, tmp_path / "m.gguf", 10)
