"""Bad model folders: each is one sentence with the path, a ModelLoadError, exit code 2; good ones load as they are."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from specdec.errors import ModelLoadError, UsageError
from specdec.models.arithmetic import format_name
from specdec.models.load import (
    content_hash,
    describe_model,
    load_model,
    load_tokenizer,
    model_path,
    resolve_device,
    resolve_dtype,
)
from specdec.targets.base import targets

CPU = torch.device("cpu")


@pytest.fixture
def folder(tiny_model, tmp_path):
    path = tmp_path / "model"
    tiny_model("llama").save_pretrained(path)
    return path


def load(path, **how):
    how.setdefault("dtype", None)
    return load_model(str(path), device=CPU, attention="auto", **how)


def refusal(path) -> str:
    with pytest.raises(ModelLoadError) as raised:
        load(path)
    sentence = str(raised.value)
    assert raised.value.exit_code == 2 and isinstance(raised.value, UsageError)
    assert str(path) in sentence and "\n" not in sentence and len(sentence) < 500
    return sentence


def weights(folder):
    return folder / "model.safetensors"


def rewritten(folder, change):
    tensors = load_file(weights(folder))
    change(tensors)
    save_file(tensors, weights(folder), metadata={"format": "pt"})


def configured(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_good_folder_loads_as_it_was_saved(folder, tiny_model):
    model = load(folder)
    assert model.dtype == torch.float64 and not model.training
    assert not any(weight.requires_grad for weight in model.parameters())
    ids = torch.tensor([[1, 2, 3, 4]])
    assert torch.equal(model(ids).logits, tiny_model("llama")(ids).logits)
    assert load(folder, dtype=torch.bfloat16).dtype == torch.bfloat16


@pytest.mark.parametrize("name", ["./nowhere", "a/b/c"])
def test_a_name_that_can_only_be_a_folder_is_not_asked_for_on_the_hub(name):
    with pytest.raises(ModelLoadError, match=f"Model folder {name} does not exist"):
        load(name)


def test_a_hub_id_that_cannot_be_had():
    """HF_HUB_OFFLINE is set for all tests: nothing is asked, nothing is in the cache."""
    with pytest.raises(ModelLoadError, match="nobody/nothing cannot be loaded") as raised:
        load("nobody/nothing")
    assert "\n" not in str(raised.value)


def pickled(folder):
    torch.save(load_file(weights(folder)), folder / "pytorch_model.bin")
    weights(folder).unlink()


def spoilt(value):
    return lambda tensors: tensors["model.layers.1.mlp.up_proj.weight"][3].fill_(value)


def without(part):
    return lambda tensors: [tensors.pop(name) for name in list(tensors) if part in name]


NORM, DAMAGED = "model.norm.weight", "damaged: model.layers.1.mlp.up_proj.weight holds NaN or infinite weights"
FAULTS = {  # what is done to a folder, and what the sentence says
    "no config": (lambda folder: (folder / "config.json").unlink(), ["no config.json"]),
    "a config that is not JSON": (lambda folder: (folder / "config.json").write_text("{ not json"), []),
    "an unknown model type": (lambda folder: configured(folder, model_type="no_such_model"), []),
    "another size": (lambda folder: configured(folder, num_hidden_layers=3), ["missing keys"]),
    "no safetensors": (lambda folder: weights(folder).unlink(), ["no safetensors file"]),
    "pickled weights": (pickled, ["no safetensors file; pickled weights are not loaded"]),
    "garbage": (lambda folder: weights(folder).write_bytes(b"\xff" * 5000), []),
    "missing layers": (
        lambda folder: rewritten(folder, without(".layers.1.")),
        ["incomplete: 9 missing keys", "model.layers.1."],
    ),
    "one missing weight": (lambda folder: rewritten(folder, without(NORM)), [f"1 missing keys ({NORM})"]),
    "another shape": (
        lambda folder: rewritten(folder, lambda tensors: tensors.update({NORM: torch.ones(40).double()})),
        [f"{NORM} is [40] in the weights and ["],
    ),
    "NaN": (lambda folder: rewritten(folder, spoilt(torch.nan)), [DAMAGED]),
    "infinity": (lambda folder: rewritten(folder, spoilt(torch.inf)), [DAMAGED]),
    "-infinity": (lambda folder: rewritten(folder, spoilt(-torch.inf)), [DAMAGED]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_folder_is_one_sentence(folder, fault):
    damage, parts = FAULTS[fault]
    damage(folder)
    sentence = refusal(folder)
    assert all(part in sentence for part in parts) and "report" not in sentence


def test_what_is_no_folder_is_one_sentence_too(folder, tmp_path):
    assert "does not exist" in refusal(tmp_path / "nowhere")
    assert "no config.json" in refusal(weights(folder))


@pytest.mark.parametrize("share", [0, 5e-5, 0.5, 0.9999])
def test_truncated_safetensors(folder, share):
    data = weights(folder).read_bytes()
    weights(folder).write_bytes(data[: int(len(data) * share)])
    assert "cannot be loaded" in refusal(folder)


def test_a_missing_shard(tiny_model, tmp_path):
    path = tmp_path / "sharded"
    tiny_model("llama").save_pretrained(path, max_shard_size="60KB")
    shards = sorted(path.glob("*.safetensors"))
    assert len(shards) > 1
    load(path)
    shards[-1].unlink()
    refusal(path)


@pytest.mark.parametrize("known", [False, True], ids=["a type of its own", "beside a known type"])
def test_remote_code_is_not_run(folder, tmp_path, known):
    marker, classes = tmp_path / "was_run", "class Evil: pass\nclass EvilConfig: pass\n"
    (folder / "modeling_evil.py").write_text(f"open({str(marker)!r}, 'w').close()\n{classes}")
    code = {"AutoModelForCausalLM": "modeling_evil.Evil"}
    if known:
        configured(folder, auto_map=code)
        assert type(load(folder)).__name__ == "LlamaForCausalLM"
    else:
        code |= {"AutoConfig": "modeling_evil.EvilConfig"}
        configured(folder, model_type="evil", architectures=["Evil"], auto_map=code)
        refusal(folder)
    assert not marker.exists()


def test_a_kind_that_is_asked_for_is_the_only_one_loaded(tiny_encoder_decoder, tmp_path):
    path = tmp_path / "t5"
    tiny_encoder_decoder("t5").save_pretrained(path)
    with pytest.raises(ModelLoadError, match="is an encoder-decoder model"):
        load(path, kind="causal")
    assert type(load(path)).__name__ == type(load(path, kind="encoder_decoder")).__name__


def test_the_target_passes_the_refusal_on(folder, group_values, sampling):
    weights(folder).unlink()
    with pytest.raises(ModelLoadError, match="no safetensors file"):
        targets.build(group_values("target", "causal", model=str(folder)), sampling=sampling())


@pytest.mark.parametrize("native", [True, False], ids=["native", "emulated"])
@pytest.mark.parametrize("says", [True, False], ids=["config says", "weights say"])
def test_a_checkpoint_keeps_its_dtype_where_the_processor_computes_in_it(folder, monkeypatch, native, says):
    """Its values stay: bfloat16 weights in float32 are the same numbers."""
    monkeypatch.setattr(
        "specdec.models.arithmetic.computes_natively", lambda dtype, _: native or dtype == torch.float32
    )
    rewritten(folder, lambda tensors: tensors.update({name: value.bfloat16() for name, value in tensors.items()}))
    configured(folder, dtype="bfloat16" if says else None)
    model = load(folder)
    used = torch.bfloat16 if native else torch.float32
    assert {weight.dtype for weight in model.parameters()} == {used}
    stored = load_file(weights(folder))["model.norm.weight"]
    assert torch.equal(model.model.norm.weight, stored.to(used))
    described = describe_model(model, str(folder))
    assert (described["dtype"], described["dtype_asked"]) == (format_name(used), "auto (bfloat16)")
    named = load(folder, dtype=torch.bfloat16)
    assert named.dtype == torch.bfloat16 and describe_model(named, str(folder))["dtype_asked"] == "bfloat16"


def test_a_folder_may_have_no_tokenizer_but_no_broken_one(folder):
    assert load_tokenizer(str(folder)) is None
    (folder / "tokenizer.json").write_text("{ not json")
    (folder / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ModelLoadError, match="tokenizer of .* cannot be loaded") as raised:
        load_tokenizer(str(folder))
    assert str(folder) in str(raised.value) and "\n" not in str(raised.value)


def test_content_hash_is_that_of_the_weights(folder):
    first = content_hash(str(folder))
    assert len(first) == 64 and content_hash(str(folder)) == first
    configured(folder, comment="no weight changed")
    assert content_hash(str(folder)) == first
    rewritten(folder, lambda tensors: tensors["model.norm.weight"].add_(1))
    assert content_hash(str(folder)) != first
    assert content_hash("some/hub-id") == ""


def test_pocket_is_a_folder_of_the_package():
    assert model_path("pocket").endswith("specdec/pocket/target")
    assert model_path("pocket", "drafter").endswith("specdec/pocket/drafter")
    assert model_path("some/folder") == "some/folder"


def test_devices_and_types():
    assert resolve_dtype("auto") is None and resolve_dtype("float16") is torch.float16
    assert resolve_device("cpu").type == "cpu"
    with pytest.raises(UsageError, match="target.device='abacus'"):
        resolve_device("abacus")
    if not torch.cuda.is_available():
        assert resolve_device("auto").type == "cpu"
        with pytest.raises(UsageError, match="no CUDA device is available"):
            resolve_device("cuda")


@pytest.mark.slow
def test_gemma2_is_loaded_with_eager_attention(tiny_model, tmp_path):
    tiny_model("gemma2").save_pretrained(tmp_path)
    assert load(tmp_path).config._attn_implementation == "eager"
