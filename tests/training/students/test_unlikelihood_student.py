"""Models that learn not to fall into loops: trained, killed and resumed, cured, refused."""

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from fixtures import adapted_models
from fixtures.adapted_models import trained
from fixtures.refusals import refused

from specdec.text.repetition import repeated_share
from specdec.training import loop
from specdec.training.recipes import UnlikelihoodTrainConfig
from specdec.training.students.unlikelihood_student import UnlikelihoodStudent, unlikely


@pytest.fixture
def values(adaptation_values):
    values = adaptation_values("unlikelihood")
    values["unlikelihood"] |= {"prefix_tokens": 8, "repetition_period": 8, "repetition_tokens": 4}
    return values


changed = partial(adapted_models.changed, UnlikelihoodTrainConfig)


@pytest.fixture
def looping(values):
    """A student whose model, untrained, goes on with one and the same token."""
    student = UnlikelihoodStudent.open(changed(values))
    with torch.no_grad():
        student.module.lm_head.weight.zero_()
        student.module.lm_head.weight[7] = 0.0  # all tokens are equally likely, and the first of them is written
    student.ends = []
    return student


def test_the_loss_is_that_of_the_definition():
    chances = torch.tensor([0.1, 0.5, 0.999])
    torch.testing.assert_close(unlikely(-chances.log()), -torch.log(1 - chances), atol=1e-4, rtol=1e-4)
    certain = torch.zeros(1, requires_grad=True)
    unlikely(certain).sum().backward()
    assert torch.isfinite(unlikely(certain)).all() and torch.isfinite(certain.grad).all()


def test_what_is_written_is_greedy_and_its_loops_are_marked(looping):
    tokens = looping.sequences.train(0).tokens
    written, marks, loops = looping.written(looping.module, tokens)
    assert torch.equal(written[:, :8], tokens[:, :8])
    assert (written[:, 8:] == 0).all() and loops == [True] * 4
    scores = looping.scored_by(looping.module, looping.sequences.heldout())
    assert scores["heldout/looping"] == 1.0 and repeated_share([0] * 24, 8) > 0.5, "as a run flags"
    # A period of one: the run begins at the second token written, and is marked from its second.
    assert not marks[:, :10].any() and marks[:, 10:].all()
    looping.ends = [0]  # the same, where this token ends a text: nothing is written
    _, marks, loops = looping.written(looping.module, tokens)
    assert not marks.any() and loops == [False] * 4


def test_a_step_adds_both_losses_and_their_gradients(looping):
    """An untrained model gives every token the chance 1/300."""
    looping.optimizers = []  # the weights stay as they are
    taken = looping.take_step(0)
    count = len(looping.tokenizer)
    share = 22 / 24  # of what is written is marked
    nats, unlikelihood = torch.log(torch.tensor(count)), -torch.log1p(torch.tensor(-1.0 / count)) * share
    assert taken["train_cross_entropy"] == pytest.approx(float(nats), rel=1e-4)
    assert taken["train_unlikelihood"] == pytest.approx(float(unlikelihood), rel=1e-3)
    assert taken["train_loss"] == pytest.approx(taken["train_cross_entropy"] + taken["train_unlikelihood"])


@pytest.mark.parametrize("weight", [1.0, 4.0])
def test_the_gradient_is_that_of_all_rows_at_once(values, weight):
    """Micro-batches, padding to whole ones, and rows without loops change nothing."""
    taken = {}
    for size in (1, 4):
        student = UnlikelihoodStudent.open(changed(values, micro_batch=size, unlikelihood__weight=weight))
        tokens = student.sequences.train(0).tokens
        chosen = torch.zeros_like(tokens, dtype=torch.bool)
        chosen[0, 3:9] = chosen[1, 20:] = chosen[3, 5] = True
        value = 0.0
        for loss in student.mean_losses(tokens[:3], chosen[:3], unlikely, weight):
            loss.backward()
            value += loss.item()
        taken[size] = (value, student.module.lm_head.weight.grad)
    assert taken[1][0] == pytest.approx(taken[4][0], rel=1e-5)
    torch.testing.assert_close(taken[1][1], taken[4][1], atol=1e-7, rtol=1e-4)
    with torch.no_grad():
        logits = student.module(input_ids=tokens[:3, :-1]).logits
    chances = logits.softmax(-1).gather(-1, tokens[:3, 1:, None])[..., 0]
    expected = -weight * torch.log(1 - chances)[chosen[:3, 1:]].mean()
    assert taken[4][0] == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.slow
def test_a_model_that_loops_is_cured(values):
    """The text is a loop, which a model learns to go on with: the unlikelihood breaks it."""
    Path(values["data"]["source"]["path"]).write_text("\n".join(["if else not " * 60] * 20), encoding="utf-8")
    values["monitor"] |= {"heldout_every_steps": 50, "checkpoint_seconds": 100.0}
    values["optimizer"] |= {"muon_lr": 0.006, "adam_lr": 0.003}
    values["data"] |= {"sequence_length": 48, "steps": 160}
    shares = {}
    for weight in (1e-6, 20.0):
        folder = values["output_dir"] + str(weight)
        student = UnlikelihoodStudent.open(changed(values, unlikelihood__weight=weight, output_dir=folder))
        trained(student)
        _, marks, _ = student.written(student.module, student.sequences.train(0).tokens)
        shares[weight] = float(marks.float().mean())
    # Where it stands between two losses that pull apart depends on rounding: 0.04 to 0.26 by seed and processor.
    assert shares[1e-6] > 0.5 and shares[20.0] < 0.4, shares


def test_the_command_scores_the_exported_model_and_the_original(values):
    outcome = loop.run("unlikelihood", values)
    summary = json.loads((outcome.folder / "summary.json").read_text())
    assert summary["steps"] == 8 and summary["tokens"] == 8 * 4 * 32
    assert (outcome.folder / "model" / "model.safetensors").exists()
    held = summary["heldout"]
    original = UnlikelihoodStudent.open(changed(values))
    nats, looping = original.scored_by(original.module, original.sequences.heldout()).values()
    assert held["before"] == {"nats_per_token": pytest.approx(nats), "looping": looping}
    assert held["after"]["nats_per_token"] < nats - 0.1
    assert set(outcome.metrics) == {
        f"heldout/{when}.{name}" for when in ("before", "final") for name in ("nats_per_token", "looping")
    }


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (dict(unlikelihood__prefix_tokens=32), "unlikelihood.prefix_tokens=32 leaves nothing to write"),
        (dict(data__packed=False), "data.packed=False: .* use true"),
    ],
)
def test_values_that_do_not_fit_are_refused(values, changes, sentence):
    with refused(sentence):
        UnlikelihoodStudent.open(changed(values, **changes))
