"""The shipped models, heads and feature drafters are what their cards say, and belong to what they learned from."""

import csv
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures.decoding import decode, seeded
from fixtures.small_parts import pocket_target
from fixtures.trainings import beginnings, held_out_code
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import specdec
from specdec.drafters import drafters
from specdec.errors import UsageError
from specdec.models.load import load_model, model_path
from specdec.published import network_files
from specdec.published.network_files import TRAINED_EAGLE, TRAINED_HEADS, shipped_file
from specdec.targets import targets
from specdec.text.document_store import encode_texts
from specdec.text.repetition import repeated_share
from specdec.training.data.tokenized_corpus import with_end_of_text
from specdec.training.pocket.publish import shipped_name
from specdec.training.recipes import SubtasksConfig
from specdec.training.students.eagle_student import EagleStudent
from specdec.training.students.head_student import HeadStudent
from specdec.training.students.loss_and_accuracy import HeadAccuracy
from specdec.training.students.model_student import heldout_loss
from specdec.training.students.parallel_student import DraftAccuracy, mask_rows, row_losses

POCKET = Path(specdec.__file__).parent / "pocket"
ROLES = ("target", "drafter")


@pytest.fixture(scope="module")
def models():
    cpu = torch.device("cpu")
    return {role: load_model(str(POCKET / role), dtype=torch.float32, device=cpu, attention="auto") for role in ROLES}


def summary(role: str) -> dict:
    return json.loads((POCKET / f"summary_{role}.json").read_text(encoding="utf-8"))


def held_out_ids(tokenizer) -> list[np.ndarray]:
    return encode_texts(tokenizer, [document.text for document in held_out_code()])


@pytest.mark.parametrize(
    ("role", "least", "most", "layers"), [("target", 10.0e6, 13e6, 8), ("drafter", 1.0e6, 1.3e6, 2)]
)
def test_shape_and_size(models, role, least, most, layers):
    model = models[role]
    parameters = sum(p.numel() for p in model.parameters())
    assert least <= parameters <= most and parameters == summary(role)["parameters"]
    assert model.config.num_hidden_layers == layers
    assert model.config.vocab_size == 4096 and model.config.max_position_embeddings == 2048
    assert model.config.tie_word_embeddings
    assert AutoModelForCausalLM.from_pretrained(POCKET / role, dtype="auto").dtype == torch.bfloat16


@pytest.mark.parametrize("role", [*ROLES, "parallel"])
def test_tokenizer(role):
    tokenizer = AutoTokenizer.from_pretrained(POCKET / role)
    assert len(tokenizer) == 4096
    assert tokenizer.eos_token == tokenizer.bos_token == "<|endoftext|>"
    text = Path(__file__).read_text(encoding="utf-8") + "\t naïve 北京 🎉\r\n"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    assert len(text.encode()) / len(ids) > 2.5
    assert (POCKET / role / "tokenizer.json").read_bytes() == (POCKET / "target/tokenizer.json").read_bytes()


@pytest.mark.slow
def test_losses_are_those_of_the_card_and_the_target_is_clearly_better(models):
    tokenizer = AutoTokenizer.from_pretrained(POCKET / "target")
    # One full window, as the card's: the drafter is much worse far from the beginning.
    streams = [with_end_of_text([ids[:2047]], tokenizer.eos_token_id) for ids in held_out_ids(tokenizer)[::3]]
    loss = {}
    for role, model in models.items():
        scores = [heldout_loss(model, s, tokenizer, 2048) for s in streams]
        loss[role] = sum(s.nats for s in scores) / sum(s.tokens for s in scores)
        # The beginnings of the files of another Python are not the whole text of the card's.
        assert loss[role] == pytest.approx(summary(role)["heldout"]["code"]["nats_per_token"], abs=0.4)
    assert loss["target"] < loss["drafter"] - 0.15


@pytest.mark.parametrize("file", sorted(POCKET.rglob("summary_*.json")), ids=lambda file: file.stem)
def test_the_history_has_every_step(file):
    """The cards of all that ships repeat the figures of the summaries; `test_publish.py` makes them anew."""
    steps = json.loads(file.read_text(encoding="utf-8"))["steps"]
    history = file.with_name(file.name.replace("summary", "history")).with_suffix(".csv")
    rows = list(csv.DictReader(history.open(encoding="utf-8")))
    assert [int(row["step"]) for row in rows] == list(range(1, steps + 1))
    assert np.isfinite([float(row["train_loss"]) for row in rows]).all()


@pytest.mark.slow
@torch.inference_mode()
def test_the_target_seldom_loops(models):
    """What a person's first figures are about: most texts of 128 tokens looped before the training against loops."""
    tokenizer = AutoTokenizer.from_pretrained(POCKET / "target")
    texts = [ids for ids in held_out_ids(tokenizer) if len(ids) > 1000]
    beginnings = torch.tensor(
        np.stack([ids[start : start + 128] for ids in texts for start in (200, 600)])[:16].astype(int)
    )
    how = GenerationConfig(do_sample=False, max_new_tokens=128, eos_token_id=tokenizer.eos_token_id, pad_token_id=0)
    written = models["target"].generate(beginnings, attention_mask=torch.ones_like(beginnings), generation_config=how)
    looping = [repeated_share(row, 32) >= 0.5 for row in written[:, 128:].tolist()]
    assert len(looping) >= 16 and sum(looping) / len(looping) < 0.4


def test_the_manifest_names_no_machine_and_has_hashes_and_all_is_small():
    files = [file for file in POCKET.rglob("*") if file.is_file() and POCKET / "heads" not in file.parents]
    assert sum(file.stat().st_size for file in files) <= 30e6
    corpus = json.loads((POCKET / "corpus.json").read_text(encoding="utf-8"))
    assert corpus["sha256"] == summary("target")["corpus_sha256"] == summary("drafter")["corpus_sha256"]
    assert all(len(s["sha256"]) == 64 for s in corpus["sources"].values())
    for file in POCKET.rglob("*"):
        if file.suffix in (".json", ".md", ".csv"):
            text = file.read_text(encoding="utf-8")
            assert "/root/" not in text and "/home/" not in text and "/work/" not in text, file.name


NAMES = ("medusa", "grounded")
SHIPPED = [(model, name) for model in ("pocket", "smollm2") for name in (*NAMES, "eagle")]


@pytest.fixture(scope="module")
def target():
    return pocket_target()


def shipped_summary(name: str, model: str = "pocket") -> dict:
    return json.loads((shipped_file(name, model).parent / f"summary_{name}.json").read_text(encoding="utf-8"))


def test_together_they_stay_small():
    for model, most in (("pocket", 16e6), ("smollm2", 16.2e6)):
        folder = shipped_file("medusa", model).parent
        assert {file.stem for file in folder.glob("*.safetensors")} == {name for own, name in SHIPPED if own == model}
        assert sum(file.stat().st_size for file in folder.iterdir() if file.is_file()) <= most
    assert shipped_file("eagle").stat().st_size <= 4e6 and shipped_file("eagle", "smollm2").stat().st_size <= 8e6


@pytest.mark.parametrize(("model", "name"), SHIPPED)
def test_the_file_agrees_with_the_shipped_summary(model, name):
    told, file = shipped_summary(name, model), shipped_file(name, model)
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
    monkeypatch.setattr(network_files, "shipped_file", lambda *_: Path("absent.safetensors"))
    with pytest.raises(
        UsageError, match=r"no network of SmolLM2 'eagle'; train one with .* \+eagle=smollm2 and give its"
    ):
        drafters.build(group_values("drafter", "eagle"), target=target)


@pytest.mark.slow
def test_accuracies_of_heads_and_networks_are_those_of_the_card(target):
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
            assert found[key] == pytest.approx(shipped_summary(name)["heldout"][key], abs=0.07), (name, key)
        first[name] = found["heldout/head_1.top1"]
    assert first["grounded"] > first["medusa"] + 0.03, "the token between makes a difference"

    network = TRAINED_EAGLE.load(shipped_file("eagle"), target)
    counted = HeadAccuracy(3, "step")
    features = target.hidden.sequence(tokens, *network.config.offsets(target.hidden.layers))[0]
    EagleStudent.count(counted, network, features, tokens, scored)
    for step in (1, 2, 3):
        key = f"heldout/step_{step}.top1"
        # Attention copies what it has read, and the beginning of a file leaves it less to copy than the card's text.
        assert counted.metrics()[key] == pytest.approx(shipped_summary("eagle")["heldout"][key], abs=0.1), key
    assert counted.metrics()["heldout/step_1.top1"] > first["grounded"] + 0.03, "the tokens before make a difference"


FOLDER = Path(model_path("pocket", "parallel"))
SUMMARY = summary("parallel")


def test_the_parallel_model_is_the_pocket_drafter_with_other_weights():
    first, second = (AutoModelForCausalLM.from_pretrained(FOLDER.parent / name, dtype="auto") for name in
                     ("drafter", "parallel"))  # fmt: skip
    assert second.dtype == torch.bfloat16 and second.config.vocab_size == first.config.vocab_size
    shapes = [{name: weight.shape for name, weight in model.state_dict().items()} for model in (first, second)]
    assert shapes[0] == shapes[1]
    assert sum(weight.numel() for weight in second.parameters()) == SUMMARY["parameters"]
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 3e6


def test_the_parallel_model_is_what_its_drafter_takes_by_default(group_values, sampling):
    target = targets.build(group_values("target", "causal", compile=False), sampling=sampling())
    drafter = drafters.build(group_values("drafter", "parallel"), target=target)
    told = drafter.describe()
    assert told["mask_token"] == SUMMARY["mask_token"] == SUMMARY["recipe"]["parallel"]["mask_token"]
    assert told["training"] == {name: float(SUMMARY[name]) for name in ("tokens", "seconds")}
    assert target.tokenizer.decode([told["mask_token"]]) == "\ufffd", "a byte that is no text"


@pytest.mark.slow
@torch.no_grad()
def test_accuracies_of_the_parallel_model_are_those_of_the_card():
    model = load_model(str(FOLDER), dtype=torch.float32, device=torch.device("cpu"), attention="auto", kind="causal")
    from_text = beginnings(AutoTokenizer.from_pretrained(model_path("pocket")), 16)
    config = SubtasksConfig(**SUMMARY["recipe"]["parallel"])
    generator = torch.Generator().manual_seed(0)
    accuracy = DraftAccuracy(config.ahead)
    for sequences in from_text.split(8):
        scored = torch.ones_like(sequences, dtype=torch.bool)
        rows = mask_rows(sequences, scored, config, SUMMARY["mask_token"], generator)
        mask = rows.attention({"full_attention": None}, model.dtype)
        nats, right = row_losses(model, rows.tokens, mask, rows.positions, rows.targets)
        accuracy.add(right, nats, rows)
    found = accuracy.metrics()
    for k in (1, 2, 3, 8):
        name = f"heldout/token_{k}.top1"
        # The beginnings of the files of another Python are not the whole text of the card's.
        assert found[name] == pytest.approx(SUMMARY["heldout"][name], abs=0.07), name
    tops = [found[f"heldout/token_{k}.top1"] for k in (1, 2, 4, 8)]
    assert tops == sorted(tops, reverse=True)
