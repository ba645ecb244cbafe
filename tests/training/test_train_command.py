import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from specdec.errors import Interrupted, UsageError
from specdec.training import trainings
from specdec.training.students import model_student


@pytest.fixture
def in_tmp(tmp_path, monkeypatch, tiny_corpus):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(model_student, "load_corpus", lambda *arguments: tiny_corpus)
    return tmp_path


def runs(folder: Path) -> list:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("tiny")
    return client.search_runs([experiment.experiment_id], order_by=["attributes.start_time"])


@pytest.mark.slow
def test_a_sitting_ends_killed_and_the_next_one_finishes(in_tmp, monkeypatch, train_values):
    values = train_values
    original = model_student.ModelStudent.take_step

    def interrupted(self: model_student.ModelStudent, step: int) -> dict[str, float]:
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, step)

    monkeypatch.setattr(model_student.ModelStudent, "take_step", interrupted)
    with pytest.raises(Interrupted) as stopped:
        trainings.run("recipe", values)
    assert stopped.value.exit_code == 143
    monkeypatch.setattr(model_student.ModelStudent, "take_step", original)
    outcome = trainings.run("recipe", values)

    first, second = runs(in_tmp)
    assert (first.info.status, second.info.status) == ("KILLED", "FINISHED")
    assert second.data.params["recipe.optimizer.muon_lr"] == "0.02"
    assert second.data.tags["specdec.resumed_from_step"] == "5"
    final = second.data.metrics["heldout/final.all.nats_per_token"]
    assert final == pytest.approx(outcome.summary["heldout"]["all"]["nats_per_token"])
    assert json.loads((in_tmp / "models" / "summary.json").read_text())["steps"] == 8
    assert not list(in_tmp.rglob("*.part"))


def test_bad_values_name_the_key(in_tmp, train_values):
    values = train_values
    values["recipe"]["data"]["tokens"] = 0
    with pytest.raises(UsageError, match=r"recipe\.data\.tokens=0: it should be greater than or equal to 1"):
        trainings.run("recipe", values)
    values["recipe"]["data"]["tokens"] = 512
    values["recipe"]["model"]["width"] = 3
    with pytest.raises(UsageError, match=r"recipe\.model\.width"):
        trainings.run("recipe", values)
    del values["recipe"]["model"]["width"]
    values["recipe"]["model"]["context"] = 16
    with pytest.raises(UsageError, match="do not fit model.context=16"):
        trainings.run("recipe", values)
    assert not (in_tmp / "mlflow.db").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "No recipe: add +recipe=NAME"),
        (["+recipe=pocket_targt"], "pocket_target"),
        (["+recipe=pocket_target", "recipe.data.token=3"], "recipe.data.token"),
    ],
)
def test_the_command_refuses_in_one_sentence(tmp_path, arguments, sentence):
    command = [sys.executable, "-m", "specdec.train", *arguments]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr and "Traceback" not in done.stderr
