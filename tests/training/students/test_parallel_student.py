"""Models that learn to draft in parallel: trained, killed and resumed, overfitted, read by the drafter, refused. Masks
behind the positions of a text, against plain sequences that are evaluated one by one.
"""

import json
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from fixtures import adapted_models
from fixtures.adapted_models import LINE, trained
from fixtures.drafting import chain, decoded
from fixtures.refusals import refused
from fixtures.trainings import assert_a_stop_changes_nothing
from transformers import AutoModelForCausalLM

from specdec import train
from specdec.drafters.base import drafters
from specdec.errors import ModelLoadError, UsageError
from specdec.models.decoder import attention_windows
from specdec.targets import targets
from specdec.training.loop import Training
from specdec.training.recipes import ParallelTrainConfig, SubtasksConfig
from specdec.training.students.parallel_student import DraftAccuracy, MaskRows, ParallelStudent, mask_rows, row_losses


@pytest.fixture
def values(adaptation_values):
    values = adaptation_values("parallel")
    values["parallel"] |= {"ahead": 4, "mask_token": None}
    return values


changed = partial(adapted_models.changed, ParallelTrainConfig)


@pytest.mark.slow
def test_a_killed_training_goes_on_to_the_same_weights(values, tmp_path):
    def opened_in(folder: str, **changes: Any) -> ParallelStudent:
        return ParallelStudent.open(changed(values, output_dir=str(tmp_path / folder), **changes))

    assert_a_stop_changes_nothing(opened_in, lambda student: student.module.state_dict())
    with pytest.raises(UsageError, match="was written by another recipe, seed, model or text"):
        Training(opened_in("stopped", parallel__keep=0.6)).restore()
    assert Training(opened_in("stopped", compile=True, parallel__name="x")).restore()


def test_gradients_do_not_depend_on_the_micro_batch(values):
    taken = {}
    for size in (1, 4):
        student = ParallelStudent.open(changed(values, micro_batch=size))
        loss = student.take_step(0)["train_loss"]
        taken[size] = (loss, student.module.state_dict()["lm_head.weight"])
    assert taken[1][0] == pytest.approx(taken[4][0], rel=1e-5)
    torch.testing.assert_close(taken[1][1], taken[4][1], atol=1e-4, rtol=0)


@pytest.mark.slow
def test_an_overfitted_model_is_right_and_the_drafter_reads_it(values, group_values, sampling):
    values["monitor"] |= {"heldout_every_steps": 50, "checkpoint_seconds": 100.0}
    values["optimizer"] |= {"muon_lr": 0.02, "adam_lr": 0.01}
    training = trained(ParallelStudent.open(changed(values, data__steps=60, parallel__keep=1.0, micro_batch=4)))
    outcome = training.finish()
    held = outcome.summary["heldout"]
    assert all(held[f"heldout/token_{k}.top1_given_earlier"] > 0.9 for k in range(1, 5)), held
    assert json.loads((outcome.folder / "summary.json").read_text())["inputs"] == 60 * 4 * (32 + 3 * 28)

    model = str(outcome.folder / "model")
    use = f"+drafter=parallel drafter.model={model} target.model={values['target']['model']}"
    assert outcome.command == f"python -m specdec.run {use}"
    target = targets.build(group_values("target", "causal", model=model, compile=False), sampling=sampling())
    drafter = drafters.build(group_values("drafter", "parallel", model=model), target=target)
    assert drafter.describe()["mask_token"] == 300 and drafter.describe()["training"]["tokens"] == 60 * 4 * 32
    assert AutoModelForCausalLM.from_pretrained(model, dtype="auto").dtype == torch.bfloat16
    line, end = target.tokenizer(LINE)["input_ids"], target.tokenizer.eos_token_id
    prompt = [end, *line[:6]]
    generation = decoded(target, drafter, chain(4), prompt, 20, rule="greedy")  # as long as what it was trained on
    accepted = [row.accepted for row in generation.rounds]
    assert sum(accepted) > 1.2 * len(accepted), "untrained, hardly one in 300 would be"


def test_the_mask_token_is_one_that_no_text_holds(values, model_folder, model_folders):
    added = ParallelStudent.open(changed(values))
    stored = AutoModelForCausalLM.from_pretrained(model_folder).get_input_embeddings().weight
    grown = added.module.get_input_embeddings().weight
    assert added.mask_token == 300 and len(grown) == 301 and torch.equal(grown[:300], stored)
    torch.testing.assert_close(grown[300], stored.mean(0))
    padded = ParallelStudent.open(changed(values, target__model=str(model_folders(304))))
    assert padded.mask_token == 300 and len(padded.module.get_input_embeddings().weight) == 304
    earlier = model_folders(304, pard_token=302)
    again = ParallelStudent.open(changed(values, target__model=str(earlier)))
    kept = AutoModelForCausalLM.from_pretrained(earlier).get_input_embeddings().weight
    assert again.mask_token == 302
    assert torch.equal(again.module.get_input_embeddings().weight[302], kept[302]), "it has been learned"
    ordinary = ParallelStudent.open(changed(values, parallel__mask_token=0))  # it stands between documents
    assert ordinary.mask_token == 0
    with pytest.raises(UsageError, match="parallel.mask_token=0: the text holds this token"):
        ordinary.take_step(0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (dict(micro_batch=3), "data.batch=4 is no multiple of micro_batch=3"),
        (dict(parallel__ahead=32), "parallel.ahead=32 tokens do not fit into sequences of data.sequence_length=32"),
        (dict(parallel__mask_token=300), "parallel.mask_token=300: the model has the tokens 0 to 299"),
        (dict(data__sequence_length=65), "data.sequence_length=65: the context of target.model=.* has 64 tokens"),
        (dict(data__passes=1), "set one of passes and steps"),
        (dict(target__model="nowhere/at/all"), "nowhere/at/all does not exist"),
    ],
)
def test_values_that_do_not_fit_are_refused(values, changes, sentence):
    with refused(sentence):
        ParallelStudent.open(changed(values, **changes))


def test_a_model_without_a_tokenizer_is_refused(values, model_folder, tmp_path):
    bare = tmp_path / "bare"
    AutoModelForCausalLM.from_pretrained(model_folder).save_pretrained(bare)
    with pytest.raises(UsageError, match="has no fast tokenizer"):
        ParallelStudent.open(changed(values, target__model=str(bare)))


def test_the_command_trains_what_the_recipe_names(values):
    train.task(values)
    folder = Path(values["output_dir"])
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 8 and summary["tokens"] == 8 * 4 * 32
    assert json.loads((folder / "model" / "config.json").read_text())["pard_token"] == summary["mask_token"]
    train.task(values)  # it is finished: nothing is trained again
    assert json.loads((folder / "summary.json").read_text())["seconds"] == summary["seconds"]


def test_an_ordinary_model_says_how_it_is_trained(values, group_values, sampling, model_folder):
    target = targets.build(
        group_values("target", "causal", model=str(model_folder), compile=False), sampling=sampling()
    )
    with pytest.raises(ModelLoadError, match=r"python -m specdec.train \+parallel=pocket target.model=FOLDER"):
        drafters.build(group_values("drafter", "parallel", model=str(model_folder)), target=target)


MASK, LENGTH = 60, 18


def subtasks(ahead: int = 4, keep: float = 0.7, keep_least: float = 0.2) -> SubtasksConfig:
    return SubtasksConfig(name="tiny", ahead=ahead, keep=keep, keep_least=keep_least, mask_token=MASK)


def made(config: SubtasksConfig, batch: int = 3, length: int = LENGTH, seed: int = 0) -> tuple[Any, Any, MaskRows]:
    """Random texts, of which about one token in four is not scored, and their rows."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(MASK, (batch, length), generator=generator)
    scored = torch.rand(batch, length, generator=generator) > 0.25
    return tokens, scored, mask_rows(tokens, scored, config, MASK, generator)


@pytest.mark.parametrize("architecture", ["opt", "gemma3"])  # positions by number; layers with and without a window
@torch.no_grad()
def test_each_row_is_the_end_of_a_plain_sequence(tiny_model, architecture):
    """The text up to a position and the masks behind it, in a pass of its own, give the same law and the same loss."""
    model = tiny_model(architecture)
    tokens, scored, rows = made(subtasks(), batch=2)
    mask = rows.attention(attention_windows(model.config, "tiny"), model.dtype)
    logits = model(input_ids=rows.tokens, attention_mask=mask, position_ids=rows.positions, use_cache=False).logits
    losses, right = row_losses(model, rows.tokens, mask, rows.positions, rows.targets)
    kinds = set()
    for b in range(len(tokens)):
        for row, (start, level) in enumerate(zip(rows.starts[b].tolist(), rows.levels.tolist(), strict=True)):
            plain = torch.cat([tokens[b, : start + 1], torch.full((level,), MASK)])
            law = model(input_ids=plain[None], use_cache=False).logits[0, -1]
            torch.testing.assert_close(logits[b, row], law, atol=1e-10, rtol=0)
            place = start + level + 1
            predicted = place < LENGTH and bool(scored[b, place])
            kinds.add((predicted, level))
            expected = F.cross_entropy(law.float(), tokens[b, place]) if predicted else torch.tensor(0.0)
            assert float(losses[b, row]) == pytest.approx(float(expected), abs=1e-5)
            assert bool(right[b, row]) == (predicted and int(law.argmax()) == int(tokens[b, place]))
    assert kinds == {(predicted, level) for predicted in (True, False) for level in range(4)}


@pytest.mark.parametrize(
    ("keep", "least", "shares"),
    [(0.7, 0.2, [0.7, 0.49, 0.343, 0.2401, 0.2, 0.2, 0.2]), (1.0, 0.2, [1.0] * 7), (0.5, 0.9, [0.5] * 7)],
)
def test_subtasks_are_dropped_to_their_shares(keep, least, shares):
    config = subtasks(8, keep, least)
    assert config.counts(1000) == pytest.approx([1000 * share for share in shares], abs=0.5)
    _, _, rows = made(config, length=208)
    assert rows.levels.bincount().tolist() == [208, *config.counts(200)]
    assert subtasks(8, 0.0, 0.0).counts(50) == [1] * 7, "none is left out altogether"


def test_the_earlier_masks_of_a_mask_are_never_dropped_and_chance_decides_which_are():
    _, _, rows = made(subtasks(keep=0.5), length=40)
    for b in range(3):
        behind = [set(rows.starts[b, rows.levels == level].tolist()) for level in range(4)]
        assert len(behind[3]) < len(behind[2]) < len(behind[1]) < len(behind[0])
        assert behind[3] < behind[2] < behind[1] < set(range(36)), "the last four would predict beyond the text"
    first = rows.starts[:, rows.levels == 1]
    assert not torch.equal(first[0].sort().values, first[1].sort().values)
    again, other = made(subtasks(keep=0.5), length=40)[2], made(subtasks(keep=0.5), length=40, seed=1)[2]
    assert torch.equal(rows.starts, again.starts) and not torch.equal(rows.starts, other.starts)


def test_masks_stand_behind_positions_whose_next_token_is_scored():
    tokens = torch.arange(30).unsqueeze(0)
    scored = torch.arange(30).unsqueeze(0) % 3 == 1
    rows = mask_rows(tokens, scored, subtasks(3, 0.3, 0.0), MASK, torch.Generator().manual_seed(0))
    assert (rows.starts[0, rows.levels > 0] % 3 == 0).all()


def test_accuracy_counts_each_level_and_the_rows_whose_branch_was_right_so_far():
    _, _, rows = made(subtasks(), batch=4, length=60)
    right = torch.rand(rows.tokens.shape, generator=torch.Generator().manual_seed(5)) < 0.6
    nats = torch.rand(rows.tokens.shape, generator=torch.Generator().manual_seed(6))
    accuracy = DraftAccuracy(4)
    for part in (slice(0, 1), slice(1, 4)):
        some = MaskRows(rows.tokens[part], rows.starts[part], rows.levels, rows.targets[part])
        accuracy.add(right[part], nats[part], some)
    predicted = {
        (b, int(rows.starts[b, r]), int(rows.levels[r])): (bool(right[b, r]), float(nats[b, r]))
        for b, r in (rows.targets >= 0).nonzero().tolist()
    }
    found = accuracy.metrics()
    for level in range(4):
        own = {(b, start): told for (b, start, of), told in predicted.items() if of == level}
        ahead = [at for at in own if all(predicted.get((*at, k), (False,))[0] for k in range(level))]
        name = f"heldout/token_{level + 1}."
        assert found[name + "top1"] == pytest.approx(mean(hit for hit, _ in own.values()))
        assert found[name + "top1_given_earlier"] == pytest.approx(mean(own[at][0] for at in ahead))
        assert found[name + "nats_per_token"] == pytest.approx(mean(loss for _, loss in own.values()))
