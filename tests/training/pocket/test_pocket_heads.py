"""The shipped heads and feature drafters are what their cards say, and belong to the targets that they learned from."""

import hashlib
import json

import pytest
import torch
from fixtures.decoding import decode, seeded
from fixtures.trainings import beginnings

from specdec.drafters import drafters
from specdec.errors import UsageError
from specdec.published import network_files
from specdec.published.network_files import TRAINED_EAGLE, TRAINED_HEADS, shipped_file
from specdec.targets import targets
from specdec.training.pocket.publish import shipped_name
from specdec.training.students.accuracy import HeadAccuracy
from specdec.training.students.eagle_student import EagleStudent
from specdec.training.students.head_student import HeadStudent

NAMES = ("medusa", "grounded")
SHIPPED = [("pocket", name) for name in (*NAMES, "eagle")] + [("smollm2", name) for name in NAMES]


@pytest.fixture(scope="module")
def target(group_values, sampling):
    config = group_values("target", "causal", dtype="float32", compile=False)
    return targets.build(config, sampling=sampling(temperature=0.0))


def summary(name: str, model: str = "pocket") -> dict:
    return json.loads((shipped_file(name, model).parent / f"summary_{name}.json").read_text(encoding="utf-8"))


def test_together_they_stay_small():
    for model, most in (("pocket", 16e6), ("smollm2", 8.5e6)):
        folder = shipped_file("medusa", model).parent
        assert {file.stem for file in folder.glob("*.safetensors")} == {name for own, name in SHIPPED if own == model}
        assert sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) <= most
    assert shipped_file("eagle").stat().st_size <= 4e6


@pytest.mark.parametrize(("model", "name"), SHIPPED)
def test_the_file_agrees_with_the_summary(model, name):
    told, file = summary(name, model), shipped_file(name, model)
    stored = TRAINED_EAGLE.read(file) if name == "eagle" else TRAINED_HEADS.read(file)
    assert told["recipe"]["eagle" if name == "eagle" else "heads"]["name"] == stored.config.name
    assert shipped_name(told) == name and told["recipe"]["target"]["model"] == model
    assert told["target"] == stored.target
    assert told["bytes"] == file.stat().st_size
    assert model == "smollm2" or name == "eagle" or told["seconds"] < 20 * 60, "heads are trained in under 20 minutes"


def test_a_model_of_smollm2s_sizes_draws_on_its_heads_and_says_that_its_weights_are_others(
    group_values, sampling, capsys, monkeypatch
):
    """A random layer stands for the original on the hub; of its 49,152 tokens it has 300, which no head counts."""
    assert network_files._SMOLLM2_OUTPUT == (49152, 576)
    monkeypatch.setattr(network_files, "_SMOLLM2_OUTPUT", (300, 576))
    shape = group_values("target", "random_110m")["shape"] | {
        "hidden_size": 576, "num_hidden_layers": 1, "num_attention_heads": 9, "num_key_value_heads": 3,
        "intermediate_size": 16, "vocab_size": 300,
    }  # fmt: skip
    values = group_values("target", "causal", model="random", shape=shape, compile=False)
    target, ids = targets.build(values, sampling=sampling(temperature=0.0)), torch.tensor([[1, 2, 3]])
    plain = target.model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=8)
    for name, shipped in (("medusa", "medusa"), ("blockwise", "medusa"), ("grounded", "grounded")):
        drafter = drafters.build(group_values("drafter", name), target=target)
        said = " ".join(capsys.readouterr().out.split())
        assert "learned from the GGUF file of SmolLM2-135M-Instruct, and this target has other weights" in said
        file = shipped_file(shipped, "smollm2").read_bytes()
        assert drafter.describe()["sha256"] == hashlib.sha256(file).hexdigest()
        assert list(decode(target, drafter, 4, [1, 2, 3], 8, **seeded()).tokens) == plain[0, 3:].tolist()
    with pytest.raises(
        UsageError, match=r"no network of SmolLM2 'eagle'; train one with .* \+eagle=smollm2 and give its"
    ):
        drafters.build(group_values("drafter", "eagle"), target=target)


@pytest.mark.slow
def test_accuracies_are_those_of_the_card(target):
    tokens = beginnings(target.tokenizer, 12)
    states = target.hidden.sequence(tokens, 0)[0].clone()
    scored = torch.ones_like(tokens, dtype=torch.bool)
    first = {}
    for name in NAMES:
        heads = TRAINED_HEADS.load(shipped_file(name), target)
        counted = HeadAccuracy(len(heads))
        HeadStudent.count(counted, heads, states, tokens, scored)
        found = counted.metrics()
        for head in range(1, len(heads) + 1):
            key = f"heldout/head_{head}.top1"
            # The beginnings of the files of another Python are not the whole text of the card's.
            assert found[key] == pytest.approx(summary(name)["heldout"][key], abs=0.07), (name, key)
        first[name] = found["heldout/head_1.top1"]
    assert first["grounded"] > first["medusa"] + 0.03, "the token between makes a difference"

    network = TRAINED_EAGLE.load(shipped_file("eagle"), target)
    counted = HeadAccuracy(3, "step")
    features = target.hidden.sequence(tokens, *network.config.offsets(target.hidden.layers))[0]
    EagleStudent.count(counted, network, features, tokens, scored)
    for step in (1, 2, 3):
        key = f"heldout/step_{step}.top1"
        # Attention copies what it has read, and the beginning of a file leaves it less to copy than the card's text.
        assert counted.metrics()[key] == pytest.approx(summary("eagle")["heldout"][key], abs=0.1), key
    assert counted.metrics()["heldout/step_1.top1"] > first["grounded"] + 0.03, "the tokens before make a difference"
