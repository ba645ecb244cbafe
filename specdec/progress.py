"""Says what a long command is doing, and how long that will take: named stages, with a bar or a line now and then.

A terminal shows bars; a file or a pipe gets plain lines. A stage that turns out to be long says so as soon as that is
known, with what would make it short. Details are shown with `-v` alone, and always stand in the log.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from rich import get_console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

LINE_S = 30.0  # seconds of silence after which a plain line tells how far the innermost stage has come
LONG_S = 30.0  # seconds from which on a stage is announced as long
IMPORTS_S = 5.0  # seconds that torch and its company take to be imported, where their files were read lately
_SURE_S = 2.0  # seconds of a stage before which its steps tell little, and it is not spoken of
VERBOSE = "SPECDEC_VERBOSE"  # environment variable that -v sets: cells of a sweep may run in other processes
DETAILS = "specdec.details"  # the logger of details, which the terminal leaves out

_details = logging.getLogger(DETAILS)
_open: list["Stage"] = []  # the stages under way, the innermost last

now = time.monotonic  # the clock of all stages
_spoke = now()  # when the last sentence was told
_stage_told = ""  # the last stage that was said


def verbose() -> bool:
    """Return True if the command was asked to show everything (`-v`)."""
    return bool(os.environ.get(VERBOSE))


def detail(sentence: str) -> None:
    """Write to the log what not every reader needs; print it too with `-v`."""
    _details.info("%s", sentence)
    if verbose():
        tell(sentence)


def tell(sentence: str) -> None:
    """Print a sentence as it is, without markup or colours; its numbers and words are never cut."""
    global _spoke
    _spoke = now()
    get_console().print(sentence, markup=False, highlight=False)


def duration(seconds: float) -> str:
    """Return a time in words, to two digits: "40 s", "1.7 min", "12 min", "27 h"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    value, unit = (seconds / 60, "min") if seconds < 99.5 * 60 else (seconds / 3600, "h")
    return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"


class Stage:
    """A stage of a command that is under way."""

    figures = ""  # what else is said of it as it goes on, in words

    def __init__(self, name: str, total: int | None, expected: float | None, shorter: str) -> None:
        self.name, self.done, self.total = name, 0, total  # steps; None where it is not known how many
        self.expected = expected  # seconds that it takes, until a step shows that; None for unknown
        self._shorter = shorter  # what would make it short, in words
        self._begun = self._last = now()
        self._earlier = 0  # steps that took none of this time
        self._first: tuple[float, int] | None = None  # when the first step was made, and the steps that were done then
        self._announced = False

    def go_on_from(self, done: int) -> None:
        """Note steps that an earlier sitting did."""
        self.done = self._earlier = done

    def advance(self, steps: int = 1) -> None:
        """Note that steps were done; announce the stage once they show that it is long."""
        self.done, self._last = self.done + steps, now()
        if self._first is None:
            self._first = self._last, self.done
        elif self.elapsed >= _SURE_S:
            self.announce()

    @property
    def elapsed(self) -> float:
        """Seconds since the stage began."""
        return now() - self._begun

    @property
    def left(self) -> float | None:
        """Seconds that the rest is expected to take; None where nothing tells, as when it takes longer than expected.

        The first step counts only while it is the only one: it often makes what all others use. What has gone since the
        last step is taken off, but no more than a step takes: how long one takes that is late is not known.
        """
        if self.total is None or self._first is None:
            return self.expected - self.elapsed if self.expected is not None and self.expected > self.elapsed else None
        since, steps = self._first[0], self.done - self._first[1]
        if not steps:
            since, steps = self._begun, self.done - self._earlier
        a_step = (self._last - since) / steps
        left = (self.total - self.done) * a_step - min(now() - self._last, a_step)
        return left if left > 0 else None

    def announce(self, words: str = "") -> bool:
        """Say once how long the rest takes and what would make it short, if that is long; tell if it was said."""
        left = self.left
        if not self._announced and left is not None and left >= LONG_S:
            self._announced = True
            steps = f"{self.done:,} of {self.total:,}, " if self.total and self.done else ""
            more = " left" if self.done else ""
            shorter = f"; {self._shorter}" if self._shorter else ""
            tell(f"{words or self.name + ':'} {steps}about {duration(left)}{more}{shorter} ...")
        return self._announced

    @property
    def standing(self) -> str:
        """The steps, the time so far and how long the rest takes, in words."""
        steps = [f"{self.done:,}" + (f" of {self.total:,}" if self.total else "")] if self.total or self.done else []
        left = [] if self.left is None else [f"about {duration(self.left)} left"]
        return ", ".join([*steps, duration(self.elapsed), *left]) + (f"; {self.figures}" if self.figures else "")


@contextmanager
def stage(
    name: str,
    about: str = "",
    total: int | None = None,
    *,
    bar: bool = True,
    told: bool = True,
    expected: float | None = None,
    shorter: str = "",
) -> Iterator[Stage]:
    """Begin a stage of a command, to be advanced where it has steps, and end it. It is said when it begins, unless the
    last one that was said has the same words, as the calls of each drafter of a study; then a terminal shows how far it
    has come and how long the rest takes, and keeps its seconds. Elsewhere a line says so after a long silence.

    Args:
        about: what it does, in words; "" where the name says it.
        bar: False where something else draws on the terminal meanwhile, such as the bars of a download.
        told: False for a stage that is usually short, whose line is a detail.
        total, expected, shorter: see `Stage`.
    """
    global _stage_told
    under_way = Stage(name, total, expected, shorter)
    said = f"{name}: {about}" if about else name
    say = tell if told and said != _stage_told else detail
    terminal = get_console().is_terminal
    drawn = terminal and bar
    if not under_way.announce(f"{name}: {about}," if about else "") and not drawn:
        say(f"{said} ...")
        _stage_told = said if told else _stage_told
    _open.append(under_way)
    try:
        by_others = terminal or len(_open) > 1  # speak where the stage is silent
        with _drawn(under_way, said) if drawn else nullcontext() if by_others else _watched():
            yield under_way
    finally:
        _open.remove(under_way)
    if drawn:
        say(f"{said}, {under_way.elapsed:.1f} s")
        _stage_told = said if told else _stage_told


def _drawn(under_way: Stage, said: str) -> Live:
    """Return a line of the terminal that shows a stage while it is under way."""
    spinner = Spinner("dots")

    def line() -> Table:
        grid = Table.grid(padding=(0, 1))
        bar = [ProgressBar(under_way.total, under_way.done, width=20)] if under_way.total else []
        grid.add_row(spinner, Text(said), *bar, Text(under_way.standing))
        return grid

    return Live(get_renderable=line, console=get_console(), transient=True)


@contextmanager
def _watched() -> Iterator[None]:
    """Have a thread speak where a stage is silent for long."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(max(_SURE_S, _spoke + LINE_S - now())):
            speak()

    thread = threading.Thread(target=watch, name="specdec-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def speak() -> None:
    """Print, after a long silence, how far the innermost stage has come, and the one around it if that has steps."""
    if _open and now() - _spoke >= LINE_S:
        *around, innermost = _open
        said = [innermost, *[each for each in around[-1:] if each.total]]
        tell("; ".join(f"{under_way.name}: {under_way.standing}" for under_way in said))
