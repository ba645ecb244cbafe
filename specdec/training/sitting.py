"""One sitting of any training: progress bar and tracking around its steps."""

import ctypes
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from specdec.config import TrackingConfig, flattened
from specdec.tracking.writer import TrackedRun, check_store, tracked_run
from specdec.training.recipe_parts import TrainingConfig
from specdec.training.resumable import FinishedTraining, ResumableTraining, column

logger = logging.getLogger(__name__)


def sit(training: ResumableTraining, tracking: TrackingConfig, params: Mapping[str, Any]) -> FinishedTraining | None:
    """Go on with a training until it is finished, tracked as one run and with a progress bar.

    Args:
        params: the parameters that the run records, nested.
    Returns:
        None in the processes that do not write files.
    """
    if training.restore():
        logger.info("Going on from step %d of %d", training.progress.step, training.steps)
    if not training.writes:
        training.train(lambda values, step: None, lambda line: None)
        return None
    tags = {"specdec.role": "training", "specdec.fingerprint": training.fingerprint}
    about: dict[str, Any] = {"name": training.name, "params": flattened(params), "tags": tags}
    # A run of its own for each sitting, which repeats the past of the training: so the journal begins anew.
    with tracked_run(tracking, **about, results=training.folder, fresh=True) as tracked:
        _log_earlier_sittings(tracked, training)
        with _progress_bar(training, tracked.heartbeat) as display:
            training.train(tracked.metrics, display)
        outcome = training.finish()
        tracked.metrics(outcome.metrics)
        tracked.artifacts()
    logger.info("%s: %s", training.name, outcome.sentence)
    return outcome


def _log_earlier_sittings(tracked: TrackedRun, training: ResumableTraining) -> None:
    """Repeat a resumed training's past, so that its new run shows the whole curve."""
    every = training.pace.log_every_steps
    history = {int(line["step"] or 0): line for line in training.progress.history}
    if history:
        curves = {"train/loss": {step: line["train_loss"] for step, line in history.items() if step % every == 0}}
        for name in training.scores:
            key = column(name)
            curves[name] = {step: line[key] for step, line in history.items() if line[key] is not None}
        tracked.curves(curves)
        tracked.tags({"specdec.resumed_from_step": str(training.progress.step)})


def prepare(config: TrainingConfig) -> None:
    """Check the tracking store, and set up this process: its memory and its threads."""
    check_store(config.tracking, Path.cwd())
    _keep_freed_memory()
    if config.threads is not None:
        torch.set_num_threads(config.threads)


def _keep_freed_memory() -> None:
    """Make glibc reuse large blocks of memory instead of returning them to the system after every tensor.

    On the machine that trained the pocket models this was worth 20% of the speed; without glibc it does nothing.
    """
    trim_threshold, top_pad, mmap_max = -1, -2, -4
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(top_pad, 2**28)


@contextmanager
def _progress_bar(
    training: ResumableTraining, heartbeat: Callable[[], None]
) -> Iterator[Callable[[dict[str, float]], None]]:
    """Give a callable for the history's line of each step; without a terminal it logs once a minute instead."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
        TextColumn("loss {task.fields[loss]:.3f}  " + training.watched + " {task.fields[heldout]:.3f}"),
        TextColumn("{task.fields[speed]:,.0f} tokens/s"), TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    nan = float("nan")
    first, began = training.progress.step, time.perf_counter()
    last = {"logged": began, "heldout": nan}
    with Progress(*columns) as progress:
        fields: dict[str, Any] = {"loss": nan, "heldout": nan, "speed": 0.0}
        bar = progress.add_task(training.name, total=training.steps, completed=first, **fields)

        def display(line: dict[str, float]) -> None:
            now = time.perf_counter()
            speed = (line["step"] - first) * training.step_tokens / (now - began)
            last["heldout"] = line.get(column(training.watched), last["heldout"])
            progress.update(bar, completed=line["step"], loss=line["train_loss"], heldout=last["heldout"], speed=speed)
            heartbeat()
            if not progress.console.is_terminal and now - last["logged"] > 60:
                last["logged"] = now
                logger.info(
                    "step %d of %d, %.0f tokens/s, loss %.3f, %s %.3f",
                    line["step"], training.steps, speed, line["train_loss"], training.watched, last["heldout"],
                )  # fmt: skip

        yield display
