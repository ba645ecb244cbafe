"""Feature drafters of a tiny Llama: trained, killed and resumed, overfitted, refused. Their loss is set against one
that makes every row of every step by itself, without masks.
"""

import csv
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from fixtures import adapted_models
from fixtures.adapted_models import trained
from fixtures.drafting import decoded
from fixtures.slow_eagle import SlowEagle, doubles
from fixtures.trainings import opened_on_states

from specdec.config import validated
from specdec.drafters.base import drafters
from specdec.errors import UsageError
from specdec.published.network_files import TRAINED_EAGLE
from specdec.targets.causal import Causal
from specdec.text.document_store import Encoded, write_documents
from specdec.training import loop
from specdec.training.data.sequences import Sequences, SpecialTokens
from specdec.training.recipes import EagleLossConfig, EagleTrainConfig
from specdec.training.students import state_student
from specdec.training.students.eagle_student import EagleLosses, EagleStudent
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
    return values


changed = partial(adapted_models.changed, EagleTrainConfig)
opened = partial(opened_on_states, EagleStudent)


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
    assert kept == sorted(kept) and len(kept) == 4
    assert min(counts[kept]) >= max(np.delete(counts, kept))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (dict(loss__regression=1.0), "loss.regression draws carried states"),
        *((dict([(f"loss__{key}", 0)]), f"loss.{key}") for key in ("steps", "decay", "cross_entropy")),
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
    outcome = loop.run("eagle", values)
    assert outcome is not None and outcome.summary["steps"] == 8
    assert list(Path(values["corpus_dir"]).rglob("train_*.bin"))
    values["eagle"]["boundaries"] = [0, 2]
    with pytest.raises(UsageError, match=r"eagle.boundaries=\[0, 2\]: boundary 2 is the output of the target's last"):
        loop.run("eagle", values)


EAGLE1 = dict(form="eagle1", boundaries=[], own_output=False)
STEPS, DECAY = 3, 0.8
TEXTS = torch.tensor([[5, 1, 4, 1, 5, 9, 2], [6, 5, 3, 5, 8, 9, 7]])
SCORED = torch.tensor([[1, 1, 1, 1, 0, 1, 1], [1, 1, 1, 1, 1, 0, 0]]).bool()


@pytest.fixture(scope="module")
def target(tiny_llama, sampling):
    return Causal(tiny_llama(23), sampling(temperature=0.0))


def loss_config(**changes) -> EagleLossConfig:
    values = dict(steps=STEPS, later=1.0, decay=DECAY, teacher=1.0, cross_entropy=1.0, regression=0.0, noise=0.0)
    return validated(EagleLossConfig, values | changes)


def scales() -> list[float]:
    return [DECAY**step / int(SCORED[:, step + 2 :].sum()) for step in range(STEPS)]


def fast(network, target, config):
    features, logits = target.hidden.sequence(TEXTS, *network.config.offsets(target.hidden.layers))
    return EagleLosses(network, config)(TEXTS, SCORED, scales(), features.clone(), logits.clone())


def slow_steps(slow, network, target, text):
    """(step, place of the predicted token, carried state, logits), each drafted from its round's start on."""
    features = target.hidden.sequence(torch.tensor([text]), *network.config.offsets(target.hidden.layers))[0][0]
    rows = slow.text_rows(text, features[:-1].tolist())
    for i, (state, logits, own) in enumerate(rows):
        above = [row[2] for row in rows[:i]]
        for step in range(STEPS):
            if i + step + 2 >= len(text):
                break
            if step:
                above.append(own)
                state, logits, own = slow.row(text[i + step + 1], state, i + step, above)
            yield step, i + step + 2, state, logits


@pytest.mark.parametrize("teacher", [1.0, 0.3])
@pytest.mark.parametrize("form", [EAGLE1, dict(draft_vocabulary=11), dict(norm_output=True, layers=2, fc_norm=True)])
def test_the_loss_is_that_of_rounds_drafted_one_by_one(target, random_eagle, form, teacher):
    network = random_eagle(target, **form)
    regression = 0.7 if network.config.form == "eagle1" else 0.0
    ids = network.drafted_ids.tolist()
    slow = SlowEagle(network.state_dict(), network.config, target.hidden.embedding, target.hidden.output_layer)
    entropy, distance = 0.0, 0.0
    for text, scored in zip(TEXTS.tolist(), SCORED.tolist(), strict=True):
        last, laws = (each[0] for each in target.hidden.sequence(torch.tensor([text]), 0))
        for step, place, state, logits in slow_steps(slow, network, target, text):
            if not scored[place]:
                continue
            scale = scales()[step]
            distance += scale * float(F.smooth_l1_loss(doubles(state), last[place - 1])) if regression else 0.0
            can_be_drafted = int(laws[place - 1].argmax()) in ids and (teacher == 1.0 or text[place] in ids)
            if can_be_drafted:
                law = laws[place - 1][ids].softmax(0)
                own = doubles(logits).log_softmax(0)
                entropy -= scale * teacher * float((law * own).sum())
                if teacher < 1.0:
                    entropy -= scale * (1 - teacher) * float(own[ids.index(text[place])])
    found = fast(network, target, loss_config(teacher=teacher, regression=regression, cross_entropy=0.5))
    assert float(found[0]) == pytest.approx(0.5 * entropy, rel=1e-9)
    assert float(found[1]) == pytest.approx(regression * distance, rel=1e-9)


@pytest.mark.parametrize("form", [EAGLE1, dict(draft_vocabulary=11, fc_norm=True)])
def test_the_gradient_is_the_slope_of_the_loss(target, random_eagle, form):
    network = random_eagle(target, **form).requires_grad_(True)
    config = loss_config(regression=0.7 if network.config.form == "eagle1" else 0.0, teacher=0.6)
    sum(fast(network, target, config)).backward()
    generator = torch.Generator().manual_seed(0)
    ways = [torch.randn(weight.shape, generator=generator, dtype=weight.dtype) for weight in network.parameters()]
    slope = sum(float((weight.grad * way).sum()) for weight, way in zip(network.parameters(), ways, strict=True))

    def moved(distance: float) -> float:
        with torch.no_grad():
            for weight, way in zip(network.parameters(), ways, strict=True):
                weight.add_(way, alpha=distance)
            return float(sum(fast(network, target, config)))

    step = 1e-6
    beyond, before = moved(step), moved(-2 * step)
    assert slope == pytest.approx((beyond - before) / (2 * step), rel=1e-5)


def test_noise_is_on_what_is_read_and_not_on_what_is_to_be_met(target, random_eagle):
    network = random_eagle(target, **EAGLE1)
    exact = fast(network, target, loss_config(regression=1.0))
    torch.manual_seed(1)
    disturbed = [fast(network, target, loss_config(regression=1.0, noise=0.01)) for _ in range(2)]
    assert disturbed[0][0] != disturbed[1][0] and disturbed[0] != exact
    assert float(disturbed[0][1]) == pytest.approx(float(exact[1]), rel=0.05)
