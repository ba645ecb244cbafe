"""The GPT-like recipes: shapes as published, a tiny one trained, resumed, exported, loaded; Llama recipes unchanged."""

import json
from copy import deepcopy
from dataclasses import asdict

import pytest
import torch
from fixtures.small_parts import composed_values
from safetensors.torch import load_file

from specdec.config import validated
from specdec.errors import UsageError
from specdec.models.load import load_model, load_tokenizer
from specdec.training import loop
from specdec.training.data_recipes import fingerprint
from specdec.training.recipes import ModelTrainConfig, PythonRecipe, TextRecipe, model_fingerprint
from specdec.training.student import build_optimizers, training_device
from specdec.training.students.model_student import build_model


def composed(name: str) -> ModelTrainConfig:
    return validated(ModelTrainConfig, composed_values(f"+recipe={name}", root="train"))


@pytest.fixture
def gpt_values(train_values, group_values, tmp_path):
    """The tiny recipe as a GPT-2 on a text file: 8 steps of 64 tokens."""
    lines = [f"the {word} has the number {i} and the number {i + 7}" for i in range(40) for word in ("cat", "dog")]
    (tmp_path / "text.txt").write_text("\n".join(lines), encoding="utf-8")
    values = deepcopy(train_values)
    recipe = values["recipe"]
    recipe["model"]["architecture"] = "gpt2"
    path = str(tmp_path / "text.txt")
    recipe["corpus"] = group_values("corpus", "text", path=path, heldout_every=20, vocabulary=270)
    del recipe["data"]["stdlib_passes"], recipe["data"]["stdlib_lateness"]
    recipe["data"]["max_passes"] = 20
    recipe["monitor"]["checkpoint_seconds"] = 1e9  # a signal saves all the same
    return values


@pytest.mark.parametrize(("name", "layers", "width", "millions"), [("gpt97m", 12, 768, 97.3), ("gpt6m", 2, 256, 5.7)])
def test_the_recipes_have_the_published_sizes(name, layers, width, millions):
    """97M and 6M in the paper; counted without the positions, whose number it does not print."""
    config = composed(name)
    assert isinstance(config.recipe, TextRecipe) and config.recipe.corpus.vocabulary == 8000
    with torch.device("meta"):
        model = build_model(config.recipe.model, 8000, 0, seed=1)
    assert (model.config.n_layer, model.config.n_embd) == (layers, width)
    parameters = sum(p.numel() for name, p in model.named_parameters() if "wpe" not in name)
    assert parameters / 1e6 == pytest.approx(millions, abs=0.1)


def test_old_checkpoints_and_corpora_of_llama_recipes_stay_valid(gpt_values):
    """The formula as it was before there was a choice of architecture and of corpus."""
    for name in ("pocket_target", "pocket_drafter"):
        config = composed(name)
        recipe = config.recipe
        assert isinstance(recipe, PythonRecipe)
        model = {key: value for key, value in asdict(recipe.model).items() if key != "architecture"}
        assert set(model) == {"hidden_size", "layers", "heads", "mlp_size", "context"}
        parts = (model, recipe.data, recipe.optimizer, recipe.bfloat16, config.seed, "hash")
        assert model_fingerprint(config, "hash") == fingerprint(*parts)
        assert set(asdict(recipe.data)) == {
            "tokens", "batch_tokens", "micro_batch_tokens", "stages", "stdlib_passes", "stdlib_lateness",
            "shuffle_window",
        }  # fmt: skip
        assert fingerprint(recipe.corpus, 2048)[:16] == "5b2f2f8d51e7d1aa"  # the folder of the tokenized corpus
    gpt = validated(ModelTrainConfig, gpt_values)
    gpt_values["recipe"]["model"]["architecture"] = "llama"
    assert model_fingerprint(gpt, "hash") != model_fingerprint(validated(ModelTrainConfig, gpt_values), "hash")


def test_every_matrix_of_a_layer_goes_to_muon_with_the_rate_its_orientation_needs(gpt_values):
    config = validated(ModelTrainConfig, gpt_values).recipe
    model = build_model(config.model, 270, 0, seed=1)
    muon, adamw = build_optimizers(model, config.optimizer)
    rates = {p.shape: group["lr"] for group in muon.param_groups for p in group["params"]}
    assert sum(len(group["params"]) for group in muon.param_groups) == 8  # 2 layers of 4
    base = config.optimizer.muon_lr
    assert rates[(16, 48)] == pytest.approx(base * 3**0.5)  # [in, out]: Muon itself would take 1
    assert rates[(24, 16)] == pytest.approx(base * (2 / 3) ** 0.5)  # times Muon's sqrt(24/16) gives 1
    assert rates[(16, 16)] == base
    assert all(p.ndim == 1 or 270 in p.shape or 32 in p.shape for group in adamw.param_groups for p in group["params"])


@pytest.mark.slow
def test_trained_exported_and_loaded(gpt_values, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = loop.run("recipe", gpt_values)
    summary = json.loads((outcome.folder / "summary.json").read_text())
    assert set(summary["heldout"]) == {"text", "all"} and summary["heldout"]["all"]["tokens"] > 0
    model = load_model(str(outcome.folder / "model"), dtype=None, device=torch.device("cpu"), attention="auto")
    written = load_file(outcome.folder / "model" / "model.safetensors")
    assert type(model).__name__ == "GPT2LMHeadModel" and {each.dtype for each in written.values()} == {torch.bfloat16}
    assert model.lm_head.weight is not model.transformer.wte.weight
    tokenizer = load_tokenizer(str(outcome.folder / "model"))
    ids = tokenizer("the cat has", return_tensors="pt")["input_ids"]
    assert torch.isfinite(model(ids).logits).all() and model(ids).logits.shape[-1] == 270
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_bad_values_name_the_key(gpt_values):
    for path, value, says in (
        ("model.architecture", "bert", r"recipe\.model\.architecture='bert'.*'llama' or 'gpt2'"),
        ("corpus.documents", "pages", r"recipe\.corpus\.documents='pages'"),
        ("corpus.name", "txet", r"recipe\.corpus\.name='txet'"),
        ("data.stdlib_passes", 1, r"recipe\.data\.stdlib_passes"),
        ("model.width", 3, r"recipe\.model\.width"),
        ("model.context", 16, "do not fit model.context=16"),
    ):
        values = deepcopy(gpt_values)
        group, key = path.split(".")
        values["recipe"][group][key] = value
        with pytest.raises(UsageError, match=says):
            validated(ModelTrainConfig, values)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cpu = (torch.device("cpu"), torch.float32)
    assert training_device("auto", bfloat16=False) == training_device("cpu", bfloat16=False) == cpu
    with pytest.raises(UsageError, match="device=cpu"):
        training_device("cuda", bfloat16=False)
