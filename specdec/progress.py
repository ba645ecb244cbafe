"""Says what a long command is doing: named stages, and the progress bar that all long steps share.

A terminal shows bars; a file or a pipe gets plain lines, the first one when a step begins and then one now and then.
Details are shown with `-v` alone, and always stand in the log.
"""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich import get_console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

LINE_S = 30.0  # seconds between two plain lines about one step
VERBOSE = "SPECDEC_VERBOSE"  # environment variable that -v sets: cells of a sweep may run in other processes
DETAILS = "specdec.details"  # the logger of details, which the terminal leaves out

_details = logging.getLogger(DETAILS)


def verbose() -> bool:
    """Return True if the command was asked to show everything (`-v`)."""
    return bool(os.environ.get(VERBOSE))


def detail(sentence: str) -> None:
    """Write to the log what not every reader needs; print it too with `-v`."""
    _details.info("%s", sentence)
    if verbose():
        tell(sentence)


class PlainProgress(Progress):
    """A progress bar that prints lines in place of bars."""

    def __init__(self, *columns: Any, **options: Any) -> None:
        super().__init__(*columns, **{**options, "disable": True})
        self._said = self.get_time()

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        self._tell(task_id)

    def update(self, task_id: TaskID, **fields: Any) -> None:
        super().update(task_id, **fields)
        self._tell(task_id)

    def _tell(self, task_id: TaskID) -> None:
        """Print how far a task has come, if the last line about one is old enough."""
        now = self.get_time()
        if now - self._said < LINE_S:
            return
        self._said = now
        task = next(task for task in self.tasks if task.id == task_id)
        total = "" if task.total is None else f" of {task.total:,.0f}"
        tell(f"{task.description}: {task.completed:,.0f}{total}, {task.elapsed or 0:.0f} s")


def progress_bar() -> Progress:
    """Make a progress bar; off a terminal it prints a line now and then."""
    kind = Progress if get_console().is_terminal else PlainProgress
    return kind(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=get_console(),
    )


@contextmanager
def stage(name: str, about: str = "", *, bar: bool = True, told: bool = True) -> Iterator[None]:
    """Say that a stage of a command begins, and on a terminal how long it has been at work; there its seconds stay.

    Args:
        about: what it does, in words; "" where the name says it.
        bar: False where something else draws on the terminal meanwhile, such as the bars of a download.
        told: False for a short stage, whose line is a detail.
    """
    say = tell if told else detail
    said = f"{name}: {about}" if about else name
    if not (bar and get_console().is_terminal):
        say(f"{said} ...")
        yield
        return
    begin = time.monotonic()
    shown = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=get_console(), transient=True
    )
    with shown:
        shown.add_task(said.replace("[", r"\["), total=None)
        yield
    say(f"{said}, {time.monotonic() - begin:.1f} s")


def tell(sentence: str) -> None:
    """Print a sentence as it is, without markup or colours; its numbers and words are never cut."""
    get_console().print(sentence, markup=False, highlight=False)
