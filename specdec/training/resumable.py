"""The loop that every training runs in: steps, history, checkpoints, signals. Resumable to the bit on a CPU.

Knows neither models nor losses, nor the tracking of the numbers: each training says what a step and a score are.
"""

import csv
import io
import logging
import os
import platform
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar

import numpy as np
import torch

from specdec.errors import Interrupted, UsageError
from specdec.models.arithmetic import native_arithmetic
from specdec.signals import STOPS, end_at_once
from specdec.text.writing import write_atomically
from specdec.training.recipe_parts import PaceConfig

logger = logging.getLogger(__name__)

CHECKPOINT = "checkpoint.pt"
HISTORY = "history.csv"


@dataclass
class Progress:
    """The part of a checkpoint that is no tensor. `seconds` are those of training, all sittings together."""

    step: int = 0
    seconds: float = 0.0
    history: list[dict[str, float | None]] = field(default_factory=list)


@dataclass(frozen=True)
class FinishedTraining:
    """The results of a training.

    Attributes:
        summary: the content of `summary.json`.
        metrics: the final figures for the tracking.
        sentence: the final figures for the user.
    """

    folder: Path
    summary: dict[str, Any]
    metrics: dict[str, float]
    sentence: str


class ResumableTraining(ABC):
    """A training that goes on from its last checkpoint if there is one.

    Class attributes:
        origin: the reasons why a checkpoint belongs to another training, for messages.
        watched: the metric that the progress bar shows beside the loss.

    Attributes:
        name, folder: the name of the tracked run, and the place of the training's files.
        steps: steps of the optimizer in all.
        step_tokens: tokens of a step.
        fingerprint: hash of all that must not change between two sittings.
        losses: the metrics' names of the parts of the loss, where `take_step` tells them apart.
        scores: the metrics of `score`, in the order of the history's columns.
        writes: this process writes files; of several processes that train together, one does.
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
        """Take an optimizer step; return the columns `train_loss` (nats), `lr`, and those of `losses`.

        Raises:
            NumericsError: the loss is not finite.
        """

    @abstractmethod
    def score(self) -> dict[str, float]:
        """Return the held-out metrics that are watched on the way, by name."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the tensors and plain data that a checkpoint keeps."""

    @abstractmethod
    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""

    @abstractmethod
    def finish(self) -> FinishedTraining:
        """Export what was trained, score it, and write `summary.json`."""

    def agreed(self, stopped: bool) -> bool:
        """Tell if the training stops after this step; processes that train together ask each other."""
        return stopped

    def effort(self, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        """Return the lines of `summary.json` that say what the training took.

        Args:
            dtype: see `training_dtype`.
        """
        return {
            "arithmetic": str(dtype).removeprefix("torch."),
            "steps": self.progress.step,
            "tokens": self.progress.step * self.step_tokens,
            "seconds": round(self.progress.seconds, 1),
            "date": time.strftime("%Y-%m-%d"),
            "hardware": _hardware(device),
        }

    # --- checkpoints

    def restore(self) -> bool:
        """Go on from the folder's checkpoint; return False if there is none.

        Raises:
            UsageError: the checkpoint belongs to another training.
        """
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
        """The columns of the history."""
        return ("step", "tokens", "train_loss", *map(column, (*self.losses, *self.scores)), "lr", "seconds")

    def train(self, log: Callable[[dict[str, float], int], None], display: Callable[[dict[str, float]], None]) -> None:
        """Take the remaining steps.

        Args:
            log: called with metrics and their step, every `log_every_steps`.
            display: called with the history's line of every step.
        Raises:
            Interrupted: a signal arrived; the step at hand was finished and a checkpoint written.
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
                line: dict[str, float | None] = dict.fromkeys(self.columns)
                line |= {"step": step, "tokens": step * self.step_tokens, **taken}
                if step % pace.heldout_every_steps == 0 or step == steps:
                    scored = self.score()
                    line |= {column(name): value for name, value in scored.items()}
                    pending |= scored
                line["seconds"] = round(self.progress.seconds, 2)
                self.progress.history.append(line)
                display({k: v for k, v in line.items() if v is not None})
                if step % pace.log_every_steps == 0 or step == steps:
                    recent = [r["train_loss"] for r in self.progress.history[-pace.log_every_steps :]]
                    pending |= {"train/loss": float(np.mean([r for r in recent if r is not None]))}
                    pending |= {"train/lr": taken["lr"], "train/tokens": float(step * self.step_tokens)}
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
    """Return the history's column of a metric: `heldout/nats_per_token` -> `heldout_nats_per_token`."""
    return metric.replace("/", "_").replace(".", "_")


@contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Give a list to which SIGINT and SIGTERM append their number, instead of interrupting the step. A second signal
    ends the process at once, and the checkpoint stays as it was.
    """
    received: list[int] = []

    def stop(signum: int, frame: FrameType | None) -> None:
        if received:
            end_at_once(signum)
        received.append(signum)

    previous = {number: signal.signal(number, stop) for number in STOPS}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def history_csv(columns: Sequence[str], history: list[dict[str, float | None]]) -> str:
    """Write the history as CSV, a line per step; the held-out columns are empty where nothing was scored."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for line in history:
        writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in line.items()})
    return text.getvalue()


def training_device(name: str) -> torch.device:
    """Return the device of a training; `auto` takes the GPU if there is one.

    Raises:
        UsageError: a GPU is asked for that is not there.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("Bad value device=cuda: no CUDA device is available; use device=cpu.")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def training_dtype(bfloat16: bool, device: torch.device) -> torch.dtype:
    """Return the dtype of the forward and backward passes: float32, or bfloat16 if the recipe asks for it and the
    device computes in it. Where it does not, one sentence says so.
    """
    arithmetic = native_arithmetic(torch.bfloat16 if bfloat16 else torch.float32, device)
    if arithmetic.sentence:
        logger.info("%s", arithmetic.sentence)
    return arithmetic.used


def _hardware(device: torch.device) -> dict[str, Any]:
    """Describe the processor, the GPU if one was used, and the versions; no host name."""
    model = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    gpu = {"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
    return {
        **gpu,
        "cpu": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
