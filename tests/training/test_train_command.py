import json
import os
import signal

import pytest

from specdec.errors import Interrupted
from specdec.training import trainings
from specdec.training.students import model_student


@pytest.mark.slow
def test_a_sitting_ends_killed_and_the_next_one_finishes(tmp_path, monkeypatch, train_values, tiny_corpus):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(model_student, "load_corpus", lambda *arguments: tiny_corpus)
    original = model_student.ModelStudent.take_step

    def interrupted(self: model_student.ModelStudent, step: int) -> dict[str, float]:
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return original(self, step)

    monkeypatch.setattr(model_student.ModelStudent, "take_step", interrupted)
    with pytest.raises(Interrupted) as stopped:
        trainings.run("recipe", train_values)
    assert stopped.value.exit_code == 143
    monkeypatch.setattr(model_student.ModelStudent, "take_step", original)
    outcome = trainings.run("recipe", train_values)

    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("tiny").experiment_id
    first, second = client.search_runs([experiment], order_by=["attributes.start_time"])
    assert (first.info.status, second.info.status) == ("KILLED", "FINISHED")
    assert second.data.params["recipe.optimizer.muon_lr"] == "0.02"
    assert second.data.tags["specdec.resumed_from_step"] == "5"
    final = second.data.metrics["heldout/final.all.nats_per_token"]
    assert final == pytest.approx(outcome.summary["heldout"]["all"]["nats_per_token"])
    assert json.loads((tmp_path / "models" / "summary.json").read_text())["steps"] == 8
    assert not list(tmp_path.rglob("*.part"))
