"""The shipped pocket models are what their card says."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures.trainings import held_out_code
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

import specdec
from specdec.models.load import load_model
from specdec.text.document_store import encode_texts
from specdec.text.repetition import repeated_share
from specdec.training.data.tokenized_corpus import with_end_of_text
from specdec.training.data.tokenizer import bytes_per_token
from specdec.training.students.model_student import heldout_loss

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
    sizes = bytes_per_token(tokenizer)
    loss = {}
    for role, model in models.items():
        scores = [heldout_loss(model, s, sizes, tokenizer.eos_token_id, 2048) for s in streams]
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
