"""What can go wrong for a user, and the exit code that says so (DESIGN 4). Anything else is a bug (1)."""

import re
from typing import Any

_OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory")  # torch raises RuntimeErrors


class SpecdecError(Exception):
    """A fault with one clear sentence for the user; `exit_code` is what the process ends with."""

    exit_code = 1


class UsageError(SpecdecError):
    """Something wrong that can be known before decoding: config, files, models, database."""

    exit_code = 2


class ModelLoadError(UsageError):
    """A model folder or checkpoint that cannot be used; the sentence names the path."""


class EnvironmentFault(SpecdecError):
    """The environment failed later: disk, memory, tracking that was required but went away."""

    exit_code = 4


class NumericsError(SpecdecError):
    """The target produced NaN or infinite logits while decoding; the run ends as FAILED with the position.

    `partial` is the generation up to the round before, filled in by the loop.
    """

    exit_code = 4
    partial: Any = None


class Interrupted(SpecdecError):
    """A signal ended the run (130 SIGINT, 143 SIGTERM); rounds finished so far are kept."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if there was no memory, on the host or on a device."""
    return isinstance(error, MemoryError) or isinstance(error, RuntimeError) and bool(_OUT_OF_MEMORY.search(str(error)))
