import csv
import math
from dataclasses import replace

import pytest
import torch
from fixtures.adapted_models import trained
from fixtures.trainings import assert_a_stop_changes_nothing

from specdec.errors import UsageError
from specdec.models.load import load_model
from specdec.training.data.tokenized_corpus import bytes_per_token
from specdec.training.loop import Training
from specdec.training.student import schedule
from specdec.training.students.model_student import ModelStudent, heldout_loss, token_losses


def all_state(student: ModelStudent) -> dict[str, torch.Tensor]:
    """Return the weights, and what the optimizers keep of them."""
    state = dict(student.module.state_dict())
    for number, optimizer in enumerate(student.optimizers):
        for key, values in optimizer.state_dict()["state"].items():
            state |= {f"{number} {key} {name}": value for name, value in values.items()}
    return state


@pytest.mark.parametrize(("how", "at"), [("kill", 5), ("term", 3)])
def test_a_stopped_and_resumed_training_gives_the_same_weights(train_config, tiny_corpus, tmp_path, how, at):
    def opened(folder: str, seed: int = 3) -> ModelStudent:
        return ModelStudent(replace(train_config, output_dir=str(tmp_path / folder), seed=seed), tiny_corpus)

    assert_a_stop_changes_nothing(opened, all_state, how, at)
    with pytest.raises(UsageError, match="another recipe, seed or corpus"):
        Training(opened("stopped", seed=4)).restore()


@pytest.mark.slow
def test_training_lowers_the_loss_exports_and_scores(train_config, tiny_corpus):
    data = replace(train_config.recipe.data, tokens=64 * 40, stdlib_passes=8.0)
    config = replace(train_config, recipe=replace(train_config.recipe, data=data))
    training = trained(ModelStudent(config, tiny_corpus))
    outcome = training.finish()
    rows = list(csv.DictReader((outcome.folder / "history.csv").open()))
    assert tuple(rows[0]) == training.columns and len(rows) == 40
    assert abs(float(rows[0]["train_loss"]) - math.log(300)) < 0.1
    assert float(rows[-1]["train_loss"]) < float(rows[0]["train_loss"]) - 1.0

    exported = load_model(
        str(outcome.folder / "model"), dtype=torch.float32, device=torch.device("cpu"), attention="auto"
    )
    scored = outcome.summary["heldout"]["code"]
    again = heldout_loss(exported, tiny_corpus.heldout["code"], tiny_corpus.tokenizer, 32)
    assert again.ratios["nats_per_token"] == pytest.approx(scored["nats_per_token"], rel=1e-5)
    assert outcome.summary["tokens"] == 2560 and outcome.summary["parameters"] > 4800


def test_held_out_loss_counts_every_token_once(train_config, tiny_corpus):
    student = ModelStudent(train_config, tiny_corpus)
    stream, end = tiny_corpus.heldout["code"], tiny_corpus.tokenizer.eos_token_id
    sizes = bytes_per_token(tiny_corpus.tokenizer)
    score = heldout_loss(student.module, stream, tiny_corpus.tokenizer, window=16, at_once=3)
    ids = [int(i) for i in stream if i != end]
    assert score.tokens == len(ids)
    assert score.bytes == sum(sizes[i] for i in ids)
    expected = 0.0
    with torch.no_grad():
        for start in range(0, len(stream) - 1, 16):
            window = torch.tensor(stream[start : start + 17].astype("int64"))[None]
            losses = token_losses(student.module, window)[0]
            expected += sum(float(v) for v, t in zip(losses, window[0, 1:], strict=True) if t != end)
    assert score.nats == pytest.approx(expected, rel=1e-5)


def test_the_schedule_warms_up_stays_and_falls_to_zero(train_config):
    factors = [schedule(s, 100, train_config.recipe.optimizer) for s in range(100)]
    assert factors[0] == pytest.approx(0.1) and factors[9:50] == [1.0] * 41
    assert factors[75] == pytest.approx(0.5) and 0 < factors[99] <= 0.02 + 1e-9
