"""Feature drafters of a tiny Llama: trained, killed and resumed, overfitted, refused."""

import csv
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from fixtures import adapted_models
from fixtures.adapted_models import trained
from fixtures.drafting import decoded

from specdec.drafters.base import drafters
from specdec.errors import UsageError
from specdec.published.network_files import TRAINED_EAGLE
from specdec.text.document_store import DocumentStore, Encoded, write_documents
from specdec.training import trainings
from specdec.training.data.hidden_states import StateSource
from specdec.training.data.sequences import Sequences, SpecialTokens
from specdec.training.recipes import EagleTrainConfig
from specdec.training.students import state_student
from specdec.training.students.eagle_student import EagleStudent, frequent_tokens
from specdec.training.students.state_student import load_target

LENGTH = 24
PROMPT = [5, 1, 4, 1]


@pytest.fixture(scope="module")
def store(tiny_model, tmp_path_factory):
    """The greedy text of the tiny Llama after one prompt, again and again: held-out text is the same."""
    tokens = list(PROMPT)
    while len(tokens) < LENGTH:
        tokens.append(int(tiny_model("llama")(torch.tensor([tokens])).logits[0, -1].argmax()))
    text = Encoded(np.array(tokens, dtype=np.uint32), np.arange(LENGTH) >= len(PROMPT))
    documents = [("train", text) for _ in range(4)] + [("heldout", text) for _ in range(2)]
    return write_documents(tmp_path_factory.mktemp("documents"), iter(documents), {"source": "greedy"})


@pytest.fixture
def values(state_values):
    """Return the values of the shipped recipe, with 8 steps of 2 sequences of a tiny network."""
    values = state_values("eagle", "pocket", 1, sequence_length=LENGTH, batch=2, heldout=2)
    values["eagle"] |= dict(hidden=32, target_hidden=32, intermediate=48, heads=4, kv_heads=2, head_dim=8)
    values["eagle"] |= dict(boundaries=[0, 1, 1])
    values["tracking"] |= {"enabled": False}
    return values


changed = partial(adapted_models.changed, EagleTrainConfig)


def opened(config: EagleTrainConfig, store: DocumentStore) -> EagleStudent:
    target = load_target(config.target, torch.device("cpu"))
    sequences = Sequences(store, config.data, config.seed, SpecialTokens((), (), 0), "greedy")
    offsets = config.eagle.offsets(target.hidden.layers)
    source = StateSource(target, offsets, sequences, config.data.states, config.loss.teacher > 0)
    return EagleStudent(config, Accelerator(cpu=True), target, sequences, source)


def test_later_steps_are_trained_from_their_share_on(values, store):
    late = {"first": 1.0, "last": 1.0, "start": 0.5, "end": 0.5}
    student = opened(changed(values, loss__later=late), store)
    counts = [len(student.scales(student.sequences.train(step), step)) for step in range(8)]
    assert counts == [1] * 4 + [3] * 4
    batch = student.sequences.train(7)
    expected = [0.8**step / (2 * (LENGTH - len(PROMPT))) for step in range(3)]
    assert student.scales(batch, 7) == pytest.approx(expected)


@pytest.mark.parametrize("form", ["eagle3", pytest.param("eagle1", marks=pytest.mark.slow)])
def test_an_overfitted_drafter_is_right_and_its_drafts_are_accepted(values, store, make_structure, group_values, form):
    changes: dict[str, Any] = dict(data__steps=40, loss__later=1.0, loss__teacher=0.0, micro_batch=2)
    changes |= dict(eagle__own_output=True, monitor__heldout_every_steps=30, monitor__checkpoint_seconds=100.0)
    if form == "eagle1":
        changes |= dict(eagle__form="eagle1", eagle__boundaries=[], eagle__fc_norm=False, loss__regression=1.0)
    training = trained(opened(changed(values, **changes), store))
    outcome = training.finish()
    rows = list(csv.DictReader((outcome.folder / "history.csv").open()))
    assert len(rows) == 40 and rows[29]["heldout_step_1_top1"] and not rows[30]["heldout_step_1_top1"]
    assert ("train_regression" in rows[0]) == (form == "eagle1")
    for step in (1, 2, 3):
        assert outcome.summary["heldout"][f"heldout/step_{step}.top1"] == 1.0
    path = outcome.folder / "eagle.safetensors"
    stored = TRAINED_EAGLE.read(path)
    assert stored.training["heldout"] == outcome.summary["heldout"]
    assert json.loads((outcome.folder / "summary.json").read_text())["bytes"] == path.stat().st_size
    target = load_target(training.student.config.target, torch.device("cpu"))
    assert stored.target == target.hidden.identity and TRAINED_EAGLE.load(path, target).config.form == form

    drafter = drafters.build(group_values("drafter", "eagle", model=str(path)), target=target)
    generation = decoded(target, drafter, make_structure("chain", 3), PROMPT, LENGTH - len(PROMPT), rule="greedy")
    assert [row.accepted for row in generation.rounds[:-1]] == [3] * (len(generation.rounds) - 1)


def test_the_most_frequent_tokens_of_the_text_can_be_drafted(values, store):
    student = opened(changed(values, eagle__draft_vocabulary=4), store)
    batch = student.sequences.batch("train", np.arange(student.sequences.counts["train"]))
    counts = np.bincount(batch.tokens[batch.scored].numpy(), minlength=61)
    kept = student.network.drafted_ids.tolist()
    assert kept == sorted(kept) == frequent_tokens(student.sequences, 61, 4)
    assert min(counts[kept]) >= max(np.delete(counts, kept))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (dict(loss__regression=1.0), "loss.regression draws carried states"),
        (dict(eagle__mask_token=3), "make networks that draft all tokens in one pass"),
        (dict(eagle__target_hidden=16, eagle__own_output=True), "hidden"),
        (dict(eagle__draft_vocabulary=70), "eagle.draft_vocabulary=70: the target has 61 tokens"),
        (dict(eagle__hidden=16, eagle__target_hidden=16), "eagle.target_hidden=16: the target's states are 32 wide"),
    ],
)
def test_values_that_do_not_fit_are_refused(values, store, changes, sentence):
    with pytest.raises(UsageError, match=sentence):
        opened(changed(values, **changes), store)


def test_the_command_opens_what_a_recipe_names(values, store, monkeypatch):
    def sequences(config: Any, target: Any, seed: int, *_: Any) -> Sequences:
        return Sequences(store, config, seed, SpecialTokens((), (), 0), "greedy")

    monkeypatch.setattr(state_student, "open_sequences", sequences)
    values["data"]["states"] |= {"cache": "disk", "folder": values["corpus_dir"]}
    outcome = trainings.run("eagle", values)
    assert outcome is not None and outcome.summary["steps"] == 8
    assert list(Path(values["corpus_dir"]).rglob("train_*.bin"))
    values["eagle"]["boundaries"] = [0, 2]
    with pytest.raises(UsageError, match=r"eagle.boundaries=\[0, 2\]: boundary 2 is the output of the target's last"):
        trainings.run("eagle", values)
