"""One path for SIGINT and SIGTERM: the first raises `Interrupted` where the process is, the second ends it at once."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from specdec.errors import Interrupted, Terminated

STOPS = (signal.SIGINT, signal.SIGTERM)
_received: list[Interrupted] = []


@contextmanager
def interruptible() -> Iterator[None]:
    """Answer both signals while a command runs; their handlers are put back afterwards."""
    if threading.current_thread() is not threading.main_thread():  # Python sets handlers nowhere else
        yield
        return
    _received.clear()
    previous = {number: signal.signal(number, _interrupt) for number in STOPS}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        _received.clear()  # the command has ended: what runs later in this process is not stopped by it


def raise_swallowed() -> None:
    """Raise the signal that a library took for one of its own errors; call it between prompts."""
    if _received:
        raise _received[0]


def forget() -> None:
    """Take the signal that was received for answered: another error says why the process ends."""
    _received.clear()


@contextmanager
def unswallowed() -> Iterator[None]:
    """Raise the signal that a library took for one of its own errors in place of the error that it made of it."""
    try:
        yield
    except Interrupted:
        raise
    except Exception:
        raise_swallowed()
        raise


def interruption(signum: int, sentence: str) -> Interrupted:
    """Return the error that stands for a signal; its exit code is the one that shells give."""
    return Terminated(sentence) if signum == signal.SIGTERM else Interrupted(sentence)


def end_at_once(signum: int) -> None:
    """End the process without another step, as a second signal asks."""
    os.write(2, b"specdec: Ended at once by a second signal.\n")
    os._exit(128 + signum)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    if _received:
        end_at_once(signum)
    name = signal.Signals(signum).name
    _received.append(interruption(signum, f"Stopped by {name}; what was finished is on disk."))
    raise _received[0]
