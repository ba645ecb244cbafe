"""The loop that every training runs in: a stopped and resumed one draws the random numbers that it would have drawn."""

import torch

from specdec.training.loop import Training
from specdec.training.recipes import PaceConfig
from specdec.training.student import Student


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
