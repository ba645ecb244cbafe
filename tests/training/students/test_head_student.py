"""Heads of a tiny Llama, trained, stopped, resumed; its backbone trained with them, whole and by adapters."""

import csv
import json
import re
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from fixtures import adapted_models
from fixtures.adapted_models import trained
from fixtures.trainings import assert_a_stop_changes_nothing, opened_on_states

from specdec.errors import NumericsError, UsageError
from specdec.published.network_files import TRAINED_HEADS
from specdec.text.document_store import DocumentStore, Encoded, write_documents
from specdec.training.data.sequences import Sequences, SpecialTokens
from specdec.training.loop import Training
from specdec.training.recipes import HeadTrainConfig
from specdec.training.students import state_student
from specdec.training.students.head_student import HeadStudent
from specdec.training.students.loss_and_accuracy import positions, score_target
from specdec.training.students.state_student import load_target

VOCABULARY = 61
LENGTH = 16


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Texts that count upwards in steps of 1 to 3, so that there is something to learn."""
    rng = np.random.default_rng(0)

    def text() -> Encoded:
        tokens = (rng.integers(VOCABULARY) + np.cumsum(rng.integers(1, 4, 40))) % VOCABULARY
        return Encoded(tokens.astype(np.uint32), rng.random(40) < 0.9)

    documents = [("train", text()) for _ in range(30)] + [("heldout", text()) for _ in range(6)]
    return write_documents(tmp_path_factory.mktemp("documents"), iter(documents), {"source": "counting"})


@pytest.fixture
def values(state_values):
    """Return the values of the shipped recipe of Medusa heads, with 8 steps of 4 sequences."""
    values = state_values("heads", "medusa", 2, sequence_length=LENGTH, batch=4, heldout=6)
    values["optimizer"] |= {"learning_rate": 0.001}
    values["optimizer"]["rate"]["warmup_steps"] = 2
    values["loss"]["teacher"] = 0.0
    values["heads"]["output"] = "tied"
    return values


changed = partial(adapted_models.changed, HeadTrainConfig)


@cache
def frozen_target(model: str) -> Any:
    """Return a target of these values, which no training of heads changes."""
    return load_target(json.loads(model), torch.device("cpu"))


def opened(config: HeadTrainConfig, store: DocumentStore, target: Any = None) -> HeadStudent:
    if target is None and config.backbone == "frozen":
        target = frozen_target(json.dumps(config.target))
    return opened_on_states(HeadStudent, config, store, target)


def weights(student: HeadStudent) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in student.module.state_dict().items()}


LORA = {"rank": 2, "alpha": 4, "dropout": 0.3, "targets": ["q_proj", "v_proj"]}
GROUNDED = {"heads__grounded": True, "heads__output": "shared", "loss__teacher": 0.5, "bfloat16": True}
JOINT = {"backbone": "joint", "loss__backbone": {"first": 0.0, "last": 1.0, "start": 0.25, "end": 0.75}}
LATE = {"first": 1.0, "last": 1.0, "start": 0.5, "end": 0.5}
ADAPTED = {
    "backbone": "joint",
    "loss__backbone": 1.0,
    "loss__self_distillation": 0.5,
    "loss__teacher": 0.5,
    "lora": LORA,
}


@pytest.mark.parametrize("changes", [GROUNDED, ADAPTED], ids=["grounded", "adapted"])
def test_a_stopped_and_resumed_training_gives_the_same_weights(values, store, tmp_path, changes):
    def opened_in(folder: str) -> HeadStudent:
        return opened(changed(values, **changes, output_dir=str(tmp_path / folder)), store)

    assert_a_stop_changes_nothing(opened_in, weights, at=5)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [GROUNDED | {"bfloat16": False}, JOINT], ids=["grounded", "joint"])
def test_how_a_step_is_cut_changes_nothing(values, store, tmp_path, changes):
    cut = []
    for size in (1, 4):
        config = changed(values, **changes, micro_batch=size, output_dir=str(tmp_path / str(size)))
        cut.append(weights(trained(opened(config, store)).student))
    for name, weight in cut[0].items():
        torch.testing.assert_close(weight, cut[1][name], rtol=1e-3, atol=1e-4, msg=name)


def test_the_first_loss_is_the_targets_own_law_further_on(values, store):
    """A fresh Medusa head says what the target says: cross entropy of the shifted tokens, by hand."""
    student = opened(changed(values), store)
    batch = student.sequences.train(0)
    law = student.target.hidden.sequence(batch.tokens, 0)[1].double().log_softmax(-1)
    expected = 0.0
    for k in range(1, 5):
        rows, columns = batch.scored[:, k + 1 :].nonzero(as_tuple=True)
        chosen = law[rows, columns, batch.tokens[rows, columns + k + 1]]
        expected -= 0.8**k * float(chosen.mean())
    assert student.take_step(0)["train_loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_training_lowers_the_loss_and_what_is_written_drafts(values, store):
    training = trained(
        opened(changed(values, data__steps=60, optimizer__learning_rate=0.01, heads__output="shared"), store)
    )
    outcome = training.finish()
    rows = list(csv.DictReader((outcome.folder / "history.csv").open()))
    assert tuple(rows[0]) == training.columns and len(rows) == 60
    assert float(rows[-1]["train_loss"]) < 0.7 * float(rows[0]["train_loss"])
    assert float(rows[-1]["heldout_head_4_top5"]) > float(rows[3]["heldout_head_4_top5"])

    path = outcome.folder / "heads.safetensors"
    target = load_target(training.student.config.target, torch.device("cpu"))
    heads = TRAINED_HEADS.load(path, target)
    again = training.student.scored_by(heads, target, training.student.sequences.heldout())
    assert again == pytest.approx(outcome.summary["heldout"], nan_ok=True)
    stored = TRAINED_HEADS.read(path)
    assert stored.target == target.hidden.identity == outcome.summary["target"]
    assert stored.training["tokens"] == 60 * 4 * LENGTH and stored.training["seed"] == 3
    assert stored.training["heldout"] == pytest.approx(again, nan_ok=True)
    assert json.loads((outcome.folder / "summary.json").read_text())["steps"] == 60
    assert set(outcome.metrics) == {name.replace("heldout/", "heldout/final.", 1) for name in again}


@pytest.mark.slow
def test_a_trained_backbone_is_saved_with_heads_that_carry_its_hash(values, store):
    original = load_target(values["target"], torch.device("cpu"))
    training = trained(opened(changed(values, backbone="joint", loss__backbone=1.0, data__steps=20), store))
    outcome = training.finish()
    after = load_target(values["target"] | {"model": str(outcome.folder / "backbone")}, torch.device("cpu"))
    assert after.hidden.identity != original.hidden.identity
    heads = TRAINED_HEADS.load(outcome.folder / "heads.safetensors", after)
    with pytest.raises(UsageError, match=f"{after.hidden.identity[:16]}.*{original.hidden.identity[:16]}"):
        TRAINED_HEADS.load(outcome.folder / "heads.safetensors", original)
    held = list(training.student.sequences.heldout())
    scores = [score_target(each, held) for each in (original, after)]
    name = "heldout/target.nats_per_token"
    assert outcome.summary["heldout"]["heldout/before.target.nats_per_token"] == pytest.approx(scores[0][name])
    assert outcome.summary["heldout"][name] == pytest.approx(scores[1][name])
    assert scores[1][name] < scores[0][name]
    assert outcome.summary["target_before"]["sha256"] == original.hidden.identity
    assert training.student.scored_by(heads, after, held)["heldout/head_1.top1"] == pytest.approx(
        outcome.summary["heldout"]["heldout/head_1.top1"]
    )


def test_the_backbone_stands_still_until_its_loss_weighs(values, store):
    student = opened(changed(values, backbone="joint", loss__backbone=LATE), store)
    first = weights(student)
    seen = []

    def display(row: dict[str, float]) -> None:
        now = weights(student)
        seen.append(all(torch.equal(now[name], first[name]) for name in now if name.startswith("backbone.")))
        assert not all(torch.equal(now[name], first[name]) for name in now if name.startswith("heads."))
        assert (row["train_backbone_loss"] > 0) == (row["step"] > 4)

    trained(student, display)
    assert seen == [True] * 4 + [False] * 4


def test_heads_and_backbone_have_their_own_rates_and_warm_ups(values, store):
    own = {"optimizer__heads_multiplier": 4.0, "optimizer__rate__schedule": "constant"}
    student = opened(changed(values, backbone="joint", loss__backbone=LATE, **own), store)
    rates = []
    for step in range(8):
        student.set_rates(step)
        rates.append([group["lr"] for group in student.optimizers[0].param_groups])
    lr = values["optimizer"]["learning_rate"]
    assert [heads for heads, _ in rates] == pytest.approx([4 * lr * f for f in (1 / 3, 2 / 3, 1, 1, 1, 1, 1, 1)])
    assert [backbone for _, backbone in rates[4:]] == pytest.approx([lr * f for f in (1 / 3, 2 / 3, 1, 1)])


@pytest.mark.slow
def test_adapters_keep_the_original_and_merge_into_the_saved_backbone(values, store):
    config = changed(
        values, **ADAPTED | {"lora": LORA | {"dropout": 0.0}}, data__steps=20, optimizer__learning_rate=0.01
    )
    original = load_target(values["target"], torch.device("cpu"))
    training = trained(opened(config, store))
    tokens = next(training.student.sequences.heldout()).tokens
    law = original.hidden.sequence(tokens, 0)[1]
    backbone = training.student.backbone
    assert backbone is not None
    backbone.eval()
    torch.testing.assert_close(backbone.original_logits(tokens), law)
    with torch.no_grad():
        adapted = backbone(tokens)[1]
    assert not torch.allclose(adapted, law)
    outcome = training.finish()
    merged = load_target(values["target"] | {"model": str(outcome.folder / "backbone")}, torch.device("cpu"))
    torch.testing.assert_close(merged.hidden.sequence(tokens, 0)[1], adapted, rtol=1e-4, atol=1e-4)
    TRAINED_HEADS.load(outcome.folder / "heads.safetensors", merged)
    files = {path.name for path in (outcome.folder / "backbone").iterdir()}
    assert "model.safetensors" in files and not any("adapter" in name for name in files)


def test_self_distillation_holds_the_backbone_at_the_original(values, store):
    """The gradient of its loss is zero where nothing has been trained yet, whatever the text says."""
    config = changed(values, **ADAPTED | {"lora": LORA | {"dropout": 0.0}, "loss__self_distillation": 1.0})
    student = opened(config, store)
    batch = student.sequences.train(0)
    _, own = student.module(batch.tokens, batch.scored, [1.0, 0.0, 0.0, 0.0, 0.0], None, None)
    where = positions(batch.tokens, batch.scored, 0)
    states, logits = load_target(values["target"], torch.device("cpu")).hidden.sequence(batch.tokens, 0)
    law = logits.flatten(0, 1)[where.laws].double().log_softmax(-1)
    assert own.item() == pytest.approx(float(-(law.exp() * law).sum()), rel=1e-5)  # its entropy: the least possible
    own.backward()
    grads = [p.grad for p in student.backbone.parameters() if p.requires_grad and p.grad is not None]
    assert grads and max(float(grad.abs().max()) for grad in grads) < 1e-3


def test_heads_go_on_from_a_file_of_their_target_and_kind(values, store, tmp_path):
    first = trained(opened(changed(values, heads__output="shared", data__steps=2), store))
    path = first.finish().folder / "heads.safetensors"
    joint = {"backbone": "joint", "loss__backbone": 1.0, "output_dir": str(tmp_path / "second")}
    second = opened(changed(values, heads__output="shared", init=str(path), **joint), store)
    begun, stored = second.network.state_dict(), TRAINED_HEADS.read(path).weights
    assert set(begun) == set(stored) and all(torch.equal(weight, stored[name]) for name, weight in begun.items())
    TRAINED_HEADS.write(first.student.network, tmp_path / "other.safetensors", "f" * 64, {})
    for file, changes, sentence in (
        (tmp_path / "other.safetensors", {}, f"init=.*other.*{'f' * 16}.*{first.student.target.hidden.identity[:16]}"),
        (path, {"heads__layers": 2}, "has layers=1 and the recipe has heads.layers=2"),
        ("nowhere", {}, "File init=nowhere does not exist"),
    ):
        with pytest.raises(UsageError, match=sentence):
            opened(changed(values, heads__output="shared", init=str(file), **changes), store)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"loss__backbone": 1.0}, "loss.backbone weighs a backbone that is frozen"),
        ({"backbone": "joint"}, "loss.backbone is 0, so backbone=joint trains nothing"),
        ({"loss__heads": 0.0}, "loss.heads is 0"),
        ({"lora": LORA}, "lora adapts a backbone that is frozen"),
        ({"backbone": "joint", "loss__backbone": 1.0, "loss__teacher": 1.0}, "loss.teacher needs the original"),
        ({"backbone": "joint", "loss__backbone": 1.0, "loss__self_distillation": 1.0}, "needs the original"),
    ],
)
def test_bad_values_are_named(values, changes, sentence):
    with pytest.raises(UsageError, match=sentence):
        changed(values, **changes)


def test_the_target_is_scored_and_a_checkpoint_of_another_recipe_is_refused(values, store):
    training = trained(opened(changed(values), store))
    score = score_target(training.student.target, [next(training.student.sequences.heldout())])
    for step in (3, -1):
        assert training.history[step]["heldout_target_top1"] == score["heldout/target.top1"]
    for changes in (
        *({"heads__count": 2}, {"seed": 4}, {"loss__decay": 0.7}, {"data__sequence_length": 8}, {"data__batch": 2}),
        *({"data__sequences": 5}, {"data__steps": 9}, {"data__states__dtype": "bfloat16"}),
    ):
        with pytest.raises(UsageError, match="another recipe, seed, target or data"):
            Training(opened(changed(values, **changes), store)).restore()
    assert Training(opened(changed(values, monitor__log_every_steps=3), store)).restore()


def test_adapters_without_peft_and_on_unknown_layers(values, store, monkeypatch):
    with pytest.raises(UsageError, match=r"lora.targets=\['nowhere'\]"):
        opened(changed(values, **ADAPTED | {"lora": LORA | {"targets": ["nowhere"]}}), store)
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(UsageError, match=r"pip install 'specdec-workbench\[lora\]'"):
        opened(changed(values, **ADAPTED), store)


def test_a_loss_that_is_not_finite_ends_the_training(values, store, monkeypatch):
    student = opened(changed(values), store)
    with torch.no_grad():
        next(iter(student.network.parameters())).fill_(float("nan"))
    with pytest.raises(NumericsError, match="at step 0"):
        trained(student)


def test_a_target_that_is_no_model_cannot_be_trained(values, table, random_law, store):
    with pytest.raises(UsageError, match="use target=causal"):
        opened(changed(values, backbone="joint", loss__backbone=1.0), store, table(random_law(VOCABULARY, 0)))


def test_a_training_begins_with_its_estimate(values, head_data, text_target, monkeypatch, capsys):
    """States and training are foretold before the target writes, and nothing where both are there already."""
    monkeypatch.setattr(state_student, "LONG_S", 0.0)
    monkeypatch.setattr(state_student, "load_target", lambda *_: text_target)
    generated = dict(when="always", texts=10, heldout_texts=4, prefix_tokens=5, new_tokens=11, temperature=0.0, batch=4)
    data = head_data(generated=generated, states={"cache": "disk"})
    for number in (2, 0):  # again with the text that was written
        torch.manual_seed(number)
        drawn = torch.get_rng_state()
        HeadStudent.open(replace(changed(values), data=data))
        said = " ".join(capsys.readouterr().out.split())
        times = r"the target's states take up to about \d+ s and the training takes up to about \d+ s"
        places = [found.start() for found in re.finditer(times + r" \(data.sequences=N and data.passes=N make", said)]
        assert len(places) == number and torch.equal(drawn, torch.get_rng_state())
        if number:
            assert places[0] < said.index("Tokens that the target writes") < places[1] < said.index("hidden states")


@pytest.mark.parametrize("native", [True, False], ids=["native", "emulated"])
def test_heads_train_in_the_arithmetic_of_the_processor(
    values, store, tiny_model, tmp_path, monkeypatch, caplog, processor, native
):
    """A bfloat16 checkpoint and recipe: both are computed in float32 where the processor would emulate bfloat16."""
    deepcopy(tiny_model("llama")).bfloat16().save_pretrained(tmp_path / "target")
    config = changed(values, target__model=str(tmp_path / "target"), bfloat16=True, data__steps=1)
    sequences = Sequences(store, config.data, config.seed, SpecialTokens((), (), 0), "counting")
    processor({"avx512_bf16": native})
    monkeypatch.setattr(state_student, "open_sequences", lambda *_: sequences)
    with caplog.at_level("INFO"):
        student = HeadStudent.open(config)
    expected = torch.bfloat16 if native else torch.float32
    states, _ = student.source.states(sequences.train(0))
    assert student.dtype == student.target.hidden.output_layer.dtype == states.dtype == expected
    assert (student.accelerator.mixed_precision == "bf16") == native
    said = [record.message for record in caplog.records if "no bfloat16 arithmetic" in record.message]
    assert len(said) == (0 if native else 2)  # of the passes, and of the target's states
    summary = trained(student).finish().summary
    name = str(expected).removeprefix("torch.")
    assert (summary["arithmetic"], summary["target_dtype"]) == (name, name)
