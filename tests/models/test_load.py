"""Bad model folders: each is one sentence with the path, a ModelLoadError, exit code 2; and good ones load as
they are.
"""

import json
import math
import shutil

import pytest
import torch
from fixtures.loaded_models import load, refusal
from safetensors.torch import load_file, save_file

from specdec.errors import ModelLoadError, UsageError
from specdec.models.arithmetic import format_name
from specdec.models.load import content_hash, describe_model, load_tokenizer, resolve_device, resolve_dtype
from specdec.models.model_files import check_tokenizer


@pytest.fixture
def folder(tiny_model, tmp_path):
    path = tmp_path / "model"
    tiny_model("llama").save_pretrained(path)
    return path


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
    with pytest.raises(ModelLoadError, match=f"Model {name} does not exist"):
        load(name)


def test_a_hub_id_that_cannot_be_had():
    """HF_HUB_OFFLINE is set for all tests: nothing is asked, nothing is in the cache."""
    with pytest.raises(ModelLoadError, match="nobody/nothing is no folder here, and cannot be loaded from") as raised:
        load("nobody/nothing")
    assert "\n" not in str(raised.value)


def cut(keep):
    """Keep so many bytes of the weights, or such a part of them."""

    def spoil(folder):
        data = weights(folder).read_bytes()
        weights(folder).write_bytes(data[: int(len(data) * keep) if isinstance(keep, float) else keep])

    return spoil


def pickle(folder):
    torch.save(load_file(weights(folder)), folder / "pytorch_model.bin")
    weights(folder).unlink()


def without(part):
    """Remove the weights whose names hold `part`."""

    def drop(tensors):
        for name in [name for name in tensors if part in name]:
            del tensors[name]

    return lambda folder: rewritten(folder, drop)


def with_value(name, value):
    return lambda folder: rewritten(folder, lambda tensors: tensors.update({name: value(tensors[name])}))


def spoiled(number):
    """Put a number that is not finite into a copy of some weights."""

    def spoil(tensor):
        tensor = tensor.clone()
        tensor[3, 4] = number
        return tensor

    return with_value("model.layers.1.mlp.up_proj.weight", spoil)


NO_NUMBER = "damaged: model.layers.1.mlp.up_proj.weight holds NaN or infinite weights"
BAD = {
    "no folder": (shutil.rmtree, "does not exist"),
    "no config": (lambda folder: (folder / "config.json").unlink(), "no config.json"),
    "a config that is no JSON": (lambda folder: (folder / "config.json").write_text("{ not json"), ""),
    "an unknown type": (lambda folder: configured(folder, model_type="no_such_model"), ""),
    "another size": (lambda folder: configured(folder, num_hidden_layers=3), "missing keys"),
    "no weights": (lambda folder: weights(folder).unlink(), "no safetensors file"),
    "pickled weights": (pickle, "no safetensors file; pickled weights are not loaded"),
    **{f"cut to {keep}": (cut(keep), "is cut off: it has ") for keep in (0, 5, 0.5, -10)},
    "a pointer": (lambda folder: weights(folder).write_text("version https://git-lfs.github.com/spec/v1\n"), "Git LFS"),
    "garbage": (lambda folder: weights(folder).write_bytes(b"\xff" * 5000), "no safetensors header"),
    "a layer is missing": (without(".layers.1."), "incomplete: 9 missing keys"),
    "a weight is missing": (without("model.norm.weight"), "1 missing keys (model.norm.weight)"),
    "another shape": (
        with_value("model.norm.weight", lambda _: torch.ones(40, dtype=torch.float64)),
        "model.norm.weight is [40] in the weights and [",
    ),
    **{str(number): (spoiled(number), NO_NUMBER) for number in (math.nan, math.inf, -math.inf)},
}


@pytest.mark.parametrize(("spoil", "says"), BAD.values(), ids=list(BAD))
def test_a_bad_folder_is_one_sentence(folder, spoil, says):
    spoil(folder)
    sentence = refusal(folder)
    assert says in sentence and "report" not in sentence


def test_a_missing_folder_is_a_path_where_its_neighbours_are_here(folder, monkeypatch):
    """And not a repository of the hub, though it has the form of one."""
    monkeypatch.chdir(folder.parent.parent)
    name = f"{folder.parent.name}/modle"
    with pytest.raises(ModelLoadError, match=f"Model {name} does not exist: .* Did you mean model\\?"):
        load(name)


def test_a_missing_shard(tiny_model, tmp_path):
    path = tmp_path / "sharded"
    tiny_model("llama").save_pretrained(path, max_shard_size="60KB")
    shards = sorted(path.glob("*.safetensors"))
    assert len(shards) > 1
    load(path)
    shards[-1].unlink()
    assert f"of the {len(shards)} files that" in (said := refusal(path)) and f"1 is missing ({shards[-1].name})" in said


@pytest.mark.parametrize("known", [False, True])
def test_remote_code_is_not_run(folder, tmp_path, known):
    """A type that transformers does not know is refused; beside one that it knows the code is ignored."""
    marker = tmp_path / "was_run"
    code = f"open({str(marker)!r}, 'w').close()\nclass Evil: pass\nclass EvilConfig: pass\n"
    (folder / "modeling_evil.py").write_text(code)
    classes = {"AutoConfig": "modeling_evil.EvilConfig", "AutoModelForCausalLM": "modeling_evil.Evil"}
    if known:
        configured(folder, auto_map={"AutoModelForCausalLM": classes["AutoModelForCausalLM"]})
        assert type(load(folder)).__name__ == "LlamaForCausalLM"
    else:
        configured(folder, model_type="evil", architectures=["Evil"], auto_map=classes)
        refusal(folder)
    assert not marker.exists()


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


def test_a_folder_without_tokenizer_has_none(folder):
    assert load_tokenizer(str(folder)) is None
    with pytest.raises(ModelLoadError, match="has no tokenizer: none of tokenizer.json, "):
        check_tokenizer(str(folder))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(ModelLoadError, match="has no tokenizer: none of tokenizer.json, "):
        load_tokenizer(str(folder))


def test_a_broken_tokenizer_is_refused(folder):
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
