"""One sitting of training: corpus, trainer, progress bar and tracking wired together."""

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

from specdec.config import flattened, validated
from specdec.tracking import TrackedRun, check_store, tracked_run
from specdec.training.data import load_corpus
from specdec.training.loop import Outcome, Trainer
from specdec.training.recipe import TrainConfig

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
    if trainer.restore():
        logger.info("Going on from step %d of %d", trainer.progress.step, trainer.batches.steps)
    params = flattened({"recipe": asdict(config.recipe), "seed": config.seed})
    tags = {"specdec.role": "training", "specdec.fingerprint": trainer.fingerprint}
    with tracked_run(config.tracking, name=config.recipe.name, params=params, tags=tags) as tracked:
        log_earlier_sittings(tracked, trainer)
        with progress_bar(trainer, tracked.heartbeat) as display:
            trainer.train(tracked.metrics, display)
        outcome = trainer.finish()
        for part, score in outcome.summary["heldout"].items():
            units = ("nats_per_token", "bits_per_byte")
            tracked.metrics({f"heldout.final.{part}.{unit}": score[unit] for unit in units})
        tracked.artifacts(outcome.folder)
    loss = outcome.summary["heldout"]["all"]
    logger.info(
        "%s: held-out %.4f nats per token, %.4f bits per byte; exported to %s",
        config.recipe.name, loss["nats_per_token"], loss["bits_per_byte"], outcome.folder / "model",
    )  # fmt: skip
    return outcome


def log_earlier_sittings(tracked: TrackedRun, trainer: Trainer) -> None:
    """Repeat a resumed training's past, so that its new run shows the whole curve."""
    every = trainer.recipe.monitor.log_every_steps
    past = [row for row in trainer.progress.history if int(row["step"] or 0) % every == 0]
    if past:
        tracked.curves({"train.loss": {int(row["step"] or 0): row["train_loss"] for row in past}})
        tracked.tags({"specdec.resumed_from_step": str(trainer.progress.step)})


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
def progress_bar(trainer: Trainer, heartbeat: Callable[[], None]) -> Iterator[Callable[[dict[str, float]], None]]:
    """A callable for each step's row; without a terminal it writes a log line a minute instead."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
        TextColumn("loss {task.fields[loss]:.3f}  held-out {task.fields[heldout]:.3f}"),
        TextColumn("{task.fields[speed]:,.0f} tokens/s"), TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    nan = float("nan")
    first, began = trainer.progress.step, time.perf_counter()
    last = {"logged": began, "heldout": nan}
    with Progress(*columns) as progress:
        fields: dict[str, Any] = {"loss": nan, "heldout": nan, "speed": 0.0}
        bar = progress.add_task(trainer.recipe.name, total=trainer.batches.steps, completed=first, **fields)

        def display(row: dict[str, float]) -> None:
            now = time.perf_counter()
            speed = (row["step"] - first) * trainer.recipe.data.batch_tokens / (now - began)
            last["heldout"] = row.get("heldout_nats_per_token", last["heldout"])
            progress.update(bar, completed=row["step"], loss=row["train_loss"], heldout=last["heldout"], speed=speed)
            heartbeat()
            if not progress.console.is_terminal and now - last["logged"] > 60:
                last["logged"] = now
                logger.info(
                    "step %d of %d, %.0f tokens/s, loss %.3f, held-out %.3f",
                    row["step"], trainer.batches.steps, speed, row["train_loss"], last["heldout"],
                )  # fmt: skip

        yield display
