import csv
import math
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from specdec.errors import Interrupted, UsageError
from specdec.models.load import load_model
from specdec.training.models.model_training import ModelTraining
from specdec.training.models.optimizer import schedule
from specdec.training.models.recipe import TrainConfig
from specdec.training.models.scoring import heldout_loss, token_losses
from specdec.training.models.tokenized_corpus import TokenizedCorpus
from specdec.training.models.tokenizer import bytes_per_token


def no_log(values: dict[str, float], step: int) -> None:
    assert values


class Killed(Exception):
    """Stands for SIGKILL: nothing is saved after it."""


def train(config: TrainConfig, corpus: TokenizedCorpus, display=lambda row: None) -> ModelTraining:
    trainer = ModelTraining(config, corpus)
    trainer.restore()
    trainer.train(no_log, display)
    return trainer


def assert_same(one: ModelTraining, two: ModelTraining) -> None:
    for (name, a), b in zip(one.model.state_dict().items(), two.model.state_dict().values(), strict=True):
        assert torch.equal(a, b), name
    for a, b in zip(one.optimizers, two.optimizers, strict=True):
        for key, state in a.state_dict()["state"].items():
            for name, value in state.items():
                assert torch.equal(value, b.state_dict()["state"][key][name]), (key, name)


def stop_at(step: int, how: str):
    def display(row: dict[str, float]) -> None:
        if row["step"] == step:
            if how == "kill":
                raise Killed
            os.kill(os.getpid(), signal.SIGTERM if how == "term" else signal.SIGINT)

    return display


@pytest.mark.parametrize(
    ("how", "error", "code", "at"),
    [("kill", Killed, None, 5), ("term", Interrupted, 143, 3), ("int", Interrupted, 130, 6)],
)
def test_a_stopped_and_resumed_training_gives_the_same_weights(
    train_config: TrainConfig, tiny_corpus: TokenizedCorpus, tmp_path: Path, how, error, code, at
) -> None:
    whole = train(replace(train_config, output_dir=str(tmp_path / "whole")), tiny_corpus)
    with pytest.raises(error) as stopped:
        train(train_config, tiny_corpus, stop_at(at, how))
    if code:
        assert stopped.value.exit_code == code
    resumed = ModelTraining(train_config, tiny_corpus)
    torch.manual_seed(999)  # what happens to be in the generator must not matter
    assert resumed.restore()
    assert resumed.progress.step == (at - 1 if how == "kill" else at)
    resumed.train(no_log, lambda row: None)
    assert_same(whole, resumed)
    losses = [[r["train_loss"] for r in t.progress.history] for t in (whole, resumed)]
    assert losses[0] == losses[1]


def test_a_checkpoint_of_another_recipe_is_refused(train_config: TrainConfig, tiny_corpus: TokenizedCorpus) -> None:
    train(train_config, tiny_corpus)
    with pytest.raises(UsageError, match="another recipe, seed or corpus"):
        ModelTraining(replace(train_config, seed=4), tiny_corpus).restore()


def test_training_lowers_the_loss_exports_and_scores(train_config: TrainConfig, tiny_corpus: TokenizedCorpus) -> None:
    data = replace(train_config.recipe.data, tokens=64 * 40, stdlib_passes=8.0)
    config = replace(train_config, recipe=replace(train_config.recipe, data=data))
    trainer = train(config, tiny_corpus)
    outcome = trainer.finish()
    rows = list(csv.DictReader((outcome.folder / "history.csv").open()))
    assert tuple(rows[0]) == trainer.columns and len(rows) == 40
    assert abs(float(rows[0]["train_loss"]) - math.log(300)) < 0.1
    assert float(rows[-1]["train_loss"]) < float(rows[0]["train_loss"]) - 1.0
    assert rows[3]["heldout_nats_per_token"] and not rows[4]["heldout_nats_per_token"]

    exported = load_model(
        str(outcome.folder / "model"), dtype=torch.float32, device=torch.device("cpu"), attention="auto"
    )
    scored = outcome.summary["heldout"]["code"]
    again = heldout_loss(
        exported, tiny_corpus.heldout["code"], bytes_per_token(tiny_corpus.tokenizer),
        tiny_corpus.tokenizer.eos_token_id, 32,
    )  # fmt: skip
    assert again.nats_per_token == pytest.approx(scored["nats_per_token"], rel=1e-5)
    assert outcome.summary["tokens"] == 2560 and outcome.summary["parameters"] > 4800


def test_held_out_loss_counts_every_token_once(train_config: TrainConfig, tiny_corpus: TokenizedCorpus) -> None:
    trainer = ModelTraining(train_config, tiny_corpus)
    stream, end = tiny_corpus.heldout["code"], tiny_corpus.tokenizer.eos_token_id
    sizes = bytes_per_token(tiny_corpus.tokenizer)
    score = heldout_loss(trainer.model, stream, sizes, end, window=16, at_once=3)
    ids = [int(i) for i in stream if i != end]
    assert score.tokens == len(ids)
    assert score.bytes == sum(sizes[i] for i in ids)
    expected = 0.0
    with torch.no_grad():
        for start in range(0, len(stream) - 1, 16):
            window = torch.tensor(stream[start : start + 17].astype("int64"))[None]
            losses = token_losses(trainer.model, window)[0]
            expected += sum(float(v) for v, t in zip(losses, window[0, 1:], strict=True) if t != end)
    assert score.nats == pytest.approx(expected, rel=1e-5)


def test_the_schedule_warms_up_stays_and_falls_to_zero(train_config: TrainConfig) -> None:
    factors = [schedule(s, 100, train_config.recipe.optimizer) for s in range(100)]
    assert factors[0] == pytest.approx(0.1) and factors[9:50] == [1.0] * 41
    assert factors[75] == pytest.approx(0.5) and 0 < factors[99] <= 0.02 + 1e-9
