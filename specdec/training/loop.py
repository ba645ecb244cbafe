"""The loop that every kind of training runs in: steps, history, checkpoints, signals, tracking. Resumable to the bit on
a CPU.

Knows neither models nor losses: a student says what a step, a score and an export are.
"""

import csv
import ctypes
import io
import logging
import math
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch

from specdec.config import flattened, validated
from specdec.environment import cpu
from specdec.errors import UsageError
from specdec.progress import stage
from specdec.signals import STOPS, end_at_once, interruption
from specdec.targets.base import targets
from specdec.text.writing import write_atomically
from specdec.tracking.writer import check_store, tracked_run
from specdec.training.recipes import RECIPES, StateTrainConfig, TrainingConfig
from specdec.training.student import FinishedTraining, Student, column
from specdec.training.students.eagle_student import EagleStudent
from specdec.training.students.head_student import HeadStudent
from specdec.training.students.model_student import ModelStudent
from specdec.training.students.parallel_student import ParallelStudent
from specdec.training.students.unlikelihood_student import UnlikelihoodStudent

logger = logging.getLogger(__name__)

STUDENTS: Mapping[str, type[Student]] = {
    "recipe": ModelStudent,
    "heads": HeadStudent,
    "eagle": EagleStudent,
    "parallel": ParallelStudent,
    "unlikelihood": UnlikelihoodStudent,
}
CHECKPOINT = "checkpoint.pt"
HISTORY = "history.csv"


class Training:
    """The training of a student, which goes on from its last checkpoint if there is one."""

    def __init__(self, student: Student) -> None:
        self.student, self.step = student, 0
        self.seconds = 0.0  # of training, all sittings together
        self.history: list[dict[str, Any]] = []  # a line per step; None where nothing was scored

    def restore(self) -> bool:
        """Go on from the checkpoint; return False without one. Raises UsageError: it is of another training."""
        student = self.student
        path = student.folder / CHECKPOINT
        if not path.exists():
            return False
        state = torch.load(path, map_location="cpu", weights_only=True)
        if state["fingerprint"] != student.fingerprint:
            raise UsageError(
                f"{path} was written by {student.origin} ({state['fingerprint'][:12]}, this is "
                f"{student.fingerprint[:12]}): choose another output_dir, or delete it to start again."
            )
        student.load_state(state)
        torch.set_rng_state(state["rng"])
        self.step, self.seconds, self.history = (state["progress"][name] for name in ("step", "seconds", "history"))
        return True

    def save(self) -> None:
        """Write the checkpoint and the history, each complete or not at all."""
        folder = self.student.folder
        if not self.student.writes:
            return
        folder.mkdir(parents=True, exist_ok=True)
        state = self.student.state() | {
            "fingerprint": self.student.fingerprint,
            "rng": torch.get_rng_state(),
            "progress": {"step": self.step, "seconds": self.seconds, "history": self.history},
        }
        part = folder / (CHECKPOINT + ".part")
        with part.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, folder / CHECKPOINT)
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, lineterminator="\n")
        writer.writeheader()
        for line in self.history:
            writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in line.items()})
        write_atomically(folder / HISTORY, text.getvalue())

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the history, a line per step; the held-out ones are empty where nothing was scored."""
        measured = map(column, (*self.student.losses, *self.student.scores))
        return ("step", "tokens", "train_loss", *measured, "lr", "seconds")

    def train(self, log: Callable[[dict[str, float], int], None], display: Callable[[dict[str, float]], None]) -> None:
        """Take the remaining steps. `log` is called with metrics and their step every `log_every_steps`, `display` with
        the history's line of each step. Raises Interrupted: a signal came; step and checkpoint were finished.
        """
        student, pace, steps = self.student, self.student.pace, self.student.steps
        began, saved = time.perf_counter(), time.monotonic()
        before = self.seconds
        pending: dict[str, float] = {}
        with stop_requests() as stopped:
            while self.step < steps:
                if self._agreed(stopped):
                    break
                taken = student.take_step(self.step)
                step = self.step = self.step + 1
                self.seconds = before + time.perf_counter() - began
                line = dict.fromkeys(self.columns) | {"step": step, "tokens": step * student.step_tokens, **taken}
                if step % pace.heldout_every_steps == 0 or step == steps:
                    scored = student.score()
                    line |= {column(name): value for name, value in scored.items()}
                    pending |= scored
                line["seconds"] = round(self.seconds, 2)
                self.history.append(line)
                display({k: v for k, v in line.items() if v is not None})
                if step % pace.log_every_steps == 0 or step == steps:
                    recent = [line["train_loss"] for line in self.history[-pace.log_every_steps :]]
                    pending |= {"train/loss": float(np.mean(recent))}
                    pending |= {"train/lr": taken["lr"], "train/tokens": float(step * student.step_tokens)}
                    pending |= {name: taken[column(name)] for name in student.losses}
                    log(pending, step)
                    pending = {}
                if time.monotonic() - saved > pace.checkpoint_seconds:
                    self.save()
                    saved = time.monotonic()
        self.save()
        if self._agreed(stopped):
            number = stopped[0] if stopped else signal.SIGTERM  # the signal may have reached another process alone
            raise interruption(
                number,
                f"Stopped at step {self.step} of {steps}; the checkpoint is in {student.folder} "
                "and the same command goes on from there.",
            )

    def _agreed(self, stopped: Sequence[int]) -> bool:
        """Tell if the training stops after this step; processes that train together ask each other."""
        if self.student.processes == 1:
            return bool(stopped)
        return bool(self.student.summed(torch.tensor(float(bool(stopped)), device=self.student.device)) > 0)

    def finish(self) -> FinishedTraining:
        """Export the student, and write `summary.json`."""
        student, device = self.student, self.student.device
        gpu = {"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
        versions = {"python": platform.python_version(), "torch": torch.__version__}  # and no host name
        return student.export({
            "arithmetic": str(student.dtype).removeprefix("torch."),
            "steps": self.step,
            "tokens": self.step * student.step_tokens,
            "seconds": round(self.seconds, 1),
            "date": time.strftime("%Y-%m-%d"),
            "hardware": {
                **gpu, "cpu": cpu()["model"], "cores": os.cpu_count(), "threads": torch.get_num_threads(), **versions
            },
        })  # fmt: skip


def prepare(config: TrainingConfig) -> None:
    """Check the tracking store, and set up this process: its memory and its threads."""
    check_store(config.tracking, Path.cwd())
    # glibc reuses large blocks of memory instead of returning them to the system after every tensor. This was worth 20%
    # of the speed on the machine that trained the pocket models; without glibc it does nothing.
    trim_threshold, top_pad, mmap_max = -1, -2, -4
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(top_pad, 2**28)
    if config.threads is not None:
        torch.set_num_threads(config.threads)


def run(kind: str, values: Mapping[str, Any]) -> FinishedTraining | None:
    """Train what a recipe of the config group `kind` names, or go on until it is finished, tracked as one run and with
    a progress bar; return None in all processes but the first. The values are the configuration, plain data from YAML.
    Raises UsageError: bad values, files or models, a checkpoint of another recipe; Interrupted: after a signal.
    """
    config = validated(RECIPES[kind], values, source="the configuration" if kind == "recipe" else "")
    if isinstance(config, StateTrainConfig):
        targets.config(config.target)
    prepare(config)
    with stage("Load", "model and text", bar=False):  # the hub draws the bars of its downloads
        student = STUDENTS[kind].open(config)
    training = Training(student)
    if training.restore():
        logger.info("Going on from step %d of %d", training.step, student.steps)
    if not student.writes:
        training.train(lambda values, step: None, lambda line: None)
        return None
    tags = {"specdec.role": "training", "specdec.fingerprint": student.fingerprint}
    about: dict[str, Any] = {"name": student.name, "params": flattened(asdict(config)), "tags": tags}
    # A run of its own for each sitting, which repeats the past of the training: so the journal begins anew.
    with tracked_run(config.tracking, **about, results=student.folder, fresh=True) as tracked:
        if history := training.history:  # so that the new run shows the whole curve
            every = student.pace.log_every_steps
            curves = {"train/loss": {line["step"]: line["train_loss"] for line in history if line["step"] % every == 0}}
            for name in student.scores:
                own = column(name)
                curves[name] = {line["step"]: line[own] for line in history if line[own] is not None}
            tracked.curves(curves)
            tracked.tags({"specdec.resumed_from_step": str(training.step)})
        first, began, heldout = training.step, time.perf_counter(), float("nan")
        shorter = f"{student.shorter}; Ctrl-C stops it, and the same command goes on from there"
        what = f"{student.name}, {student.steps:,} steps of {student.step_tokens:,} tokens"
        with stage("Train", what, student.steps, shorter=shorter) as under_way:
            under_way.go_on_from(first)

            def display(line: dict[str, float]) -> None:
                nonlocal heldout
                heldout = line.get(column(student.watched), heldout)
                speed = (line["step"] - first) * student.step_tokens / (time.perf_counter() - began)
                scored = "" if math.isnan(heldout) else f"  {student.watched} {heldout:.3f}"
                under_way.figures = f"loss {line['train_loss']:.3f}{scored}  {speed:,.0f} tokens/s"
                under_way.advance()
                tracked.heartbeat()

            training.train(tracked.metrics, display)
        with stage("Export", "and score on all held-out text", told=False):
            outcome = training.finish()
        tracked.metrics(outcome.metrics)
        tracked.artifacts()
    logger.info("%s: %s", student.name, outcome.sentence)
    logger.info("Use it: %s", outcome.command)
    return outcome


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

    main = threading.current_thread() is threading.main_thread()  # Python sets handlers nowhere else
    previous = {number: signal.signal(number, stop) for number in STOPS if main}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
