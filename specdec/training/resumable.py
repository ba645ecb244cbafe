"""The loop that every training runs in: steps, history, checkpoints, signals. Resumable to the bit on a CPU.

It knows neither models nor losses, nor what tracks the numbers: a training fills in what a step and a score are.
"""

from __future__ import annotations

import csv
import io
import os
import platform
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from specdec.errors import Interrupted, UsageError
from specdec.training.batches import write_atomically
from specdec.training.models.recipe import PaceConfig

CHECKPOINT = "checkpoint.pt"
HISTORY = "history.csv"


@dataclass
class Progress:
    """What a checkpoint holds besides tensors. `seconds` are of training, all sittings together."""

    step: int = 0
    seconds: float = 0.0
    history: list[dict[str, float | None]] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """A finished training.

    Attributes:
        summary: what `summary.json` keeps.
        metrics: the final figures for the tracking.
        sentence: the same for the user.
    """

    folder: Path
    summary: dict[str, Any]
    metrics: dict[str, float]
    sentence: str


class ResumableTraining(ABC):
    """One training, from its last checkpoint when there is one.

    Class attributes:
        origin: what a checkpoint must share with the command that goes on from it; messages say so.
        watched: the metric that the progress bar shows beside the loss.

    Attributes:
        name, folder: what it is called, and where its files go.
        steps: of the optimizer, in all.
        step_tokens: tokens of a step.
        fingerprint: hash of all that must not change between two sittings.
        losses: parts of the loss that `take_step` tells apart, as metrics.
        scores: the metrics of `score`, in the order of the history's columns.
        writes: whether this process writes files; of several that train together one does.
    """

    origin: ClassVar[str]
    watched: ClassVar[str]

    name: str
    folder: Path
    steps: int
    step_tokens: int
    fingerprint: str
    losses: Sequence[str] = ()
    scores: Sequence[str]
    writes: bool = True

    def __init__(self, pace: PaceConfig) -> None:
        self.pace = pace
        self.progress = Progress()

    @abstractmethod
    def take_step(self, step: int) -> dict[str, float]:
        """One optimizer step: the columns `train_loss`, in nats, `lr`, and those of `losses`. Raises NumericsError."""

    @abstractmethod
    def score(self) -> dict[str, float]:
        """The held-out metrics that are watched on the way, by name."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Tensors and plain data that a checkpoint holds."""

    @abstractmethod
    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what `state` gave."""

    @abstractmethod
    def finish(self) -> Outcome:
        """Export what was trained, score it, and write `summary.json`."""

    def agreed(self, stopped: bool) -> bool:
        """Whether to stop after this step; processes that train together ask each other."""
        return stopped

    # --- checkpoints

    def restore(self) -> bool:
        """Go on from the folder's checkpoint. Raises UsageError when it belongs to another training."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            return False
        state = torch.load(path, map_location="cpu", weights_only=True)
        if state["fingerprint"] != self.fingerprint:
            raise UsageError(
                f"{path} was written by {self.origin} "
                f"({state['fingerprint'][:12]}, this is {self.fingerprint[:12]}): "
                "choose another output_dir, or delete it to start again."
            )
        self.load_state(state)
        torch.set_rng_state(state["rng"])
        self.progress = Progress(**state["progress"])
        return True

    def save(self) -> None:
        """Write the checkpoint and the history, each complete or not at all."""
        if not self.writes:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        state = self.state() | {
            "fingerprint": self.fingerprint,
            "rng": torch.get_rng_state(),
            "progress": asdict(self.progress),
        }
        part = self.folder / (CHECKPOINT + ".part")
        with part.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self.folder / CHECKPOINT)
        write_atomically(self.folder / HISTORY, history_csv(self.columns, self.progress.history))

    # --- steps

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the history: a metric's name with underscores for dots."""
        return ("step", "tokens", "train_loss", *map(column, (*self.losses, *self.scores)), "lr", "seconds")

    def train(self, log: Callable[[dict[str, float], int], None], display: Callable[[dict[str, float]], None]) -> None:
        """Take the remaining steps. A signal ends it after the step at hand, with a checkpoint (Interrupted).

        Args:
            log: takes metrics and their step, every `log_every_steps`.
            display: takes the history's row of every step.
        """
        pace, steps = self.pace, self.steps
        began, saved = time.perf_counter(), time.monotonic()
        before = self.progress.seconds
        pending: dict[str, float] = {}
        with stop_requests() as stopped:
            while self.progress.step < steps:
                if self.agreed(bool(stopped)):
                    break
                taken = self.take_step(self.progress.step)
                self.progress.step += 1
                step = self.progress.step
                self.progress.seconds = before + time.perf_counter() - began
                row: dict[str, float | None] = dict.fromkeys(self.columns)
                row |= {"step": step, "tokens": step * self.step_tokens, **taken}
                if step % pace.heldout_every_steps == 0 or step == steps:
                    scored = self.score()
                    row |= {column(name): value for name, value in scored.items()}
                    pending |= scored
                row["seconds"] = round(self.progress.seconds, 2)
                self.progress.history.append(row)
                display({k: v for k, v in row.items() if v is not None})
                if step % pace.log_every_steps == 0 or step == steps:
                    recent = [r["train_loss"] for r in self.progress.history[-pace.log_every_steps :]]
                    pending |= {"train.loss": float(np.mean([r for r in recent if r is not None]))}
                    pending |= {"train.lr": taken["lr"], "train.tokens": float(step * self.step_tokens)}
                    pending |= {name: taken[column(name)] for name in self.losses}
                    log(pending, step)
                    pending = {}
                if time.monotonic() - saved > pace.checkpoint_seconds:
                    self.save()
                    saved = time.monotonic()
        self.save()
        if self.agreed(bool(stopped)):
            number = stopped[0] if stopped else signal.SIGTERM  # the signal may have reached another process alone
            raise Interrupted(
                f"Stopped at step {self.progress.step} of {steps}; the checkpoint is in {self.folder} "
                "and the same command goes on from there.",
                128 + number,
            )


def column(metric: str) -> str:
    """`heldout.nats_per_token` -> `heldout_nats_per_token`: a metric's column in the history."""
    return metric.replace(".", "_")


@contextmanager
def stop_requests() -> Iterator[list[int]]:
    """A list that SIGINT and SIGTERM append their number to, instead of interrupting the step."""
    received: list[int] = []
    previous = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        previous[number] = signal.signal(number, lambda signum, frame: received.append(signum))
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def history_csv(columns: Sequence[str], history: list[dict[str, float | None]]) -> str:
    """One line per step; the held-out columns are empty where nothing was scored."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for row in history:
        writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
    return text.getvalue()


def hardware(device: torch.device) -> dict[str, Any]:
    """Processor, GPU where one was used, and versions; no host name."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    gpu = {"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
    return {
        **gpu,
        "cpu": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
