"""The faults that a user can meet, each with its exit code. Every other exception is a bug (1)."""

import difflib
import re
from collections.abc import Iterable
from typing import Any

_OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory")  # torch raises RuntimeErrors


def near_misses(name: str, names: Iterable[str]) -> str:
    """Return ` Did you mean ngram?` with the names that are closest to `name`; "" if none is close."""

    def likeness(other: str) -> float:
        return difflib.SequenceMatcher(None, other, name).ratio()

    close = difflib.get_close_matches(name, list(names), n=3, cutoff=0.5)
    close = [other for other in close if likeness(other) > likeness(close[0]) - 0.1]
    return f" Did you mean {' or '.join(close)}?" if close else ""


class SpecdecError(Exception):
    """A fault with one clear sentence for the user; `exit_code` is what the process ends with."""

    exit_code = 1


class UsageError(SpecdecError):
    """A fault that can be known before decoding: in the config, files, models, the database."""

    exit_code = 2


class ModelLoadError(UsageError):
    """A model folder or checkpoint cannot be used; the sentence names the path."""


class EnvironmentFault(SpecdecError):
    """The environment failed later: the disk, memory, or tracking that was required."""

    exit_code = 4


class NumericsError(SpecdecError):
    """The target produced NaN or infinite logits while decoding; the run ends as FAILED with the position."""

    exit_code = 4
    partial: Any = None  # the generation up to the round before
    partials: Any = None  # those of a batch, by place of the request


class NotLossless(SpecdecError):
    """Outputs are not the target's own as they should be, or a check failed; what was measured is on disk, whole."""

    exit_code = 6


class DeclaredLossy(SpecdecError):
    """A combination says itself that it is not lossless, so that there is nothing to certify."""

    exit_code = 7


class LossFound(SpecdecError):
    """The gate found that candidates accept fewer tokens, or are slower, than the run that they are held against."""

    exit_code = 8


class Interrupted(SpecdecError):
    """A signal ended the run (130 SIGINT, 143 SIGTERM); rounds that were finished are kept.

    Libraries make an error anew from its text, to which they add lines of their own, and lose what else it had: so the
    sentence is the first line, and each signal has a class.
    """

    exit_code = 130

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self._sentence = message.partition("\n")[0]

    def __str__(self) -> str:
        return self._sentence  # not `args`: torch writes its stack into those of an error that passes through a trace


class Terminated(Interrupted):
    """SIGTERM ended the run."""

    exit_code = 143


def in_one_line(error: BaseException) -> str:
    """Return what an error says, in one line of at most 300 characters without a full stop, for use in a sentence."""
    return " ".join(str(error).split())[:300].rstrip(".")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory ran out, as Python's MemoryError or as one of torch's RuntimeErrors."""
    return isinstance(error, MemoryError) or isinstance(error, RuntimeError) and bool(_OUT_OF_MEMORY.search(str(error)))


EXIT_CODES = {
    0: "done",
    1: "a bug of specdec",
    2: "something to put right in the command, said in one sentence before anything is decoded",
    3: "some cells of a sweep, or of a training's sweep, failed; the others are done",
    4: "the environment failed: disk, memory, NaN in the target's logits, tracking that was required, or a server that "
    "is audited",
    6: "outputs refuted: `certify` found a loss, or outputs of any command are not the target's own and no near-tie "
    "explains it; the folder is complete, and a sweep counts the cell as failed",
    7: "`certify` has nothing to certify: a part declares itself lossy",
    8: "`gate` found a loss: candidates commit fewer tokens per round, or are slower, than the earlier run",
    130: "ended by SIGINT (Ctrl-C); finished rounds are kept",
    143: "ended by SIGTERM; finished rounds are kept",
}
"""Meanings of the exit codes of all commands."""
