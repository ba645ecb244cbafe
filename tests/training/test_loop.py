"""The loop that every training runs in: what is stopped and resumed draws the numbers that it would have drawn, and is
one history for the tracking.
"""

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from specdec.errors import Interrupted
from specdec.training import loop
from specdec.training.loop import Training
from specdec.training.recipes import PaceConfig
from specdec.training.student import Student
from specdec.training.students import model_student


class Draws(Student):
    """Draws a number in every step, and knows all of them."""

    name, step_tokens, fingerprint, scores, origin, watched = "draws", 1, "same", (), "nothing", "train/loss"
    open = part_losses = export = None

    def __init__(self, folder, steps):
        self.pace = PaceConfig(heldout_every_steps=100, log_every_steps=100, checkpoint_seconds=100)
        self.folder, self.steps, self.drawn = folder, steps, []

    def take_step(self, step):
        self.drawn.append((step, float(torch.rand(()))))
        return {"train_loss": 1.0, "lr": 0.0}

    def score(self):
        return {}

    def state(self):
        return {"drawn": self.drawn}

    def load_state(self, state):
        self.drawn = state["drawn"]


def test_a_resumed_training_goes_on_with_the_next_step_and_number(tmp_path):
    drawn = {}
    with torch.random.fork_rng(devices=[]):
        for name, sittings in (("whole", [7]), ("stopped", [3, 4, 7])):
            torch.manual_seed(5)
            for steps in sittings:
                training = Training(Draws(tmp_path / name, steps))
                assert training.restore() == (steps != sittings[0])
                training.train(lambda metrics, step: None, lambda line: None)
                torch.manual_seed(99)  # another process begins with other numbers
            drawn[name] = training.student.drawn
    assert drawn["whole"] == drawn["stopped"] and [step for step, _ in drawn["whole"]] == list(range(7))


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
        loop.run("recipe", train_values)
    assert stopped.value.exit_code == 143
    monkeypatch.setattr(model_student.ModelStudent, "take_step", original)
    outcome = loop.run("recipe", train_values)

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


def test_a_training_runs_in_any_thread():
    """Python sets no handler of a signal outside of the main thread."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: loop.stop_requests().__enter__()).result() == []
