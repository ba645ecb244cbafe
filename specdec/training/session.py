"""One sitting of any training: progress bar and tracking around its loop; and of a whole model's, its corpus."""

from __future__ import annotations

import ctypes
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from specdec.config import TrackingConfig, flattened, validated
from specdec.tracking.writer import TrackedRun, check_store, tracked_run
from specdec.training.batches import load_corpus
from specdec.training.models.loop import Trainer
from specdec.training.models.recipe import TrainConfig
from specdec.training.resumable import Outcome, ResumableTraining, column

logger = logging.getLogger(__name__)


def run(values: Mapping[str, Any]) -> Outcome:
    """Train, or go on training, what `values` (plain data from YAML) say; returns paths and figures.

    Raises UsageError for bad values or a checkpoint of another recipe, Interrupted after a signal.
    """
    config = validated(TrainConfig, values, source="the configuration")
    check_store(config.tracking, Path.cwd())
    keep_freed_memory()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    logger.info("Reading the corpus")
    corpus = load_corpus(config.recipe.corpus, config.recipe.model.context, Path(config.corpus_dir))
    trainer = Trainer(config, corpus)
    outcome = sit(trainer, config.tracking, {"recipe": asdict(config.recipe), "seed": config.seed})
    assert outcome is not None  # one process trains a whole model
    return outcome


def sit(training: ResumableTraining, tracking: TrackingConfig, params: Mapping[str, Any]) -> Outcome | None:
    """Go on with a training until it is finished, tracked as one run and with a progress bar.

    Of several processes only the one that writes tracks and finishes it; the others return None.

    Args:
        params: what the run records about the training, nested.
    """
    if training.restore():
        logger.info("Going on from step %d of %d", training.progress.step, training.steps)
    if not training.writes:
        training.train(lambda values, step: None, lambda row: None)
        return None
    tags = {"specdec.role": "training", "specdec.fingerprint": training.fingerprint}
    with tracked_run(tracking, name=training.name, params=flattened(params), tags=tags) as tracked:
        log_earlier_sittings(tracked, training)
        with progress_bar(training, tracked.heartbeat) as display:
            training.train(tracked.metrics, display)
        outcome = training.finish()
        tracked.metrics(outcome.metrics)
        tracked.artifacts(outcome.folder)
    logger.info("%s: %s", training.name, outcome.sentence)
    return outcome


def log_earlier_sittings(tracked: TrackedRun, training: ResumableTraining) -> None:
    """Repeat a resumed training's past, so that its new run shows the whole curve."""
    every = training.pace.log_every_steps
    history = {int(row["step"] or 0): row for row in training.progress.history}
    if history:
        curves = {"train.loss": {step: row["train_loss"] for step, row in history.items() if step % every == 0}}
        for name in training.scores:
            curves[name] = {step: row[column(name)] for step, row in history.items() if row[column(name)] is not None}
        tracked.curves(curves)
        tracked.tags({"specdec.resumed_from_step": str(training.progress.step)})


def keep_freed_memory() -> None:
    """Have glibc reuse large blocks instead of returning them to the system after every tensor.

    Where the pocket models were trained this was worth 20% of the speed; without glibc it does nothing.
    """
    trim_threshold, top_pad, mmap_max = -1, -2, -4
    try:
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(mmap_max, 0)
        libc.mallopt(trim_threshold, 2**31 - 1)
        libc.mallopt(top_pad, 2**28)
    except (OSError, AttributeError):
        pass


@contextmanager
def progress_bar(
    training: ResumableTraining, heartbeat: Callable[[], None]
) -> Iterator[Callable[[dict[str, float]], None]]:
    """A callable for each step's row; without a terminal it writes a log line a minute instead."""
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

        def display(row: dict[str, float]) -> None:
            now = time.perf_counter()
            speed = (row["step"] - first) * training.step_tokens / (now - began)
            last["heldout"] = row.get(column(training.watched), last["heldout"])
            progress.update(bar, completed=row["step"], loss=row["train_loss"], heldout=last["heldout"], speed=speed)
            heartbeat()
            if not progress.console.is_terminal and now - last["logged"] > 60:
                last["logged"] = now
                logger.info(
                    "step %d of %d, %.0f tokens/s, loss %.3f, %s %.3f",
                    row["step"], training.steps, speed, row["train_loss"], training.watched, last["heldout"],
                )  # fmt: skip

        yield display
