"""The processes of a tensor-parallel run: their number, this one's rank, and what they decide together.

torchrun starts them and says rank and number in the environment. Rank 0 is the run: it alone writes files, tracks and
prints. The others make the same calls in the same order, each on its share of the weights. Imports stay light.
"""

import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, NamedTuple

from specdec import signals
from specdec.errors import EnvironmentFault, Terminated, UsageError

SILENCE_S = 60.0  # a rank that is not heard of for so long while decoding ends the run
_LOADING = timedelta(hours=2)  # as transformers allows: ranks read their weights at different speeds
_NOTICED_S = 2.0  # a process closes its connections a moment before it is seen to be gone
_COLLECTIVE = re.compile(r"gloo|nccl|connection (reset|closed|refused)|timed out|process group", re.IGNORECASE)


class _Group(NamedTuple):
    """The processes that have met."""

    control: Any  # their group for decisions, on the host
    processes: Sequence[tuple[str, int]]  # host and process number by rank


_group: _Group | None = None
_asked = 1  # processes that the run's configuration asks for


def rank() -> int:
    """Return the number of this process among those that torchrun started; 0 without torchrun."""
    return _from_environment("RANK", 0) if count() > 1 else 0


def count() -> int:
    """Return how many processes torchrun started; 1 without torchrun."""
    return _from_environment("WORLD_SIZE", 1)


def _from_environment(name: str, otherwise: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else otherwise


def check_single(who: str) -> None:
    """Raise UsageError where torchrun started several processes: each would do all the work, to the same places."""
    if count() > 1:
        raise UsageError(
            f"torchrun started {count()} processes, and {who} is the work of one: start it without torchrun."
        )


def check_count(asked: int) -> None:
    """Check that there are as many processes as target.tensor_parallel asks for; UsageError: how to start them."""
    global _asked
    _asked = asked
    if asked == count():
        return
    started = "one process runs" if count() == 1 else f"torchrun started {count()} processes"
    raise UsageError(
        f"Bad value target.tensor_parallel={asked}: {started}; start as many processes as it says, with torchrun "
        f"--nproc-per-node {max(asked, 2)} -m specdec.run target.tensor_parallel={max(asked, 2)} ..., or one process "
        "without torchrun and with target.tensor_parallel=1."
    )


def join(size: int, device: str) -> None:
    """Meet the other processes, once; every rank waits here for the last one. The weights lie on "cpu" or "cuda".
    UsageError for a command that does not run in several processes.
    """
    global _group
    if size != _asked:
        raise UsageError(
            f"Bad value target.tensor_parallel={size}: only a run of specdec.run shares a model out over processes; "
            "use target.tensor_parallel=1."
        )
    if _group is not None:
        return
    import socket

    import torch
    from torch import distributed

    if device == "cuda":
        torch.cuda.set_device(_from_environment("LOCAL_RANK", 0))
    distributed.init_process_group("nccl" if device == "cuda" else "gloo", timeout=_LOADING)
    control = distributed.new_group(backend="gloo", timeout=_LOADING)
    processes: list[Any] = [None] * count()
    distributed.all_gather_object(processes, (socket.gethostname(), os.getpid()), group=control)
    _group = _Group(control, processes)


def expect_within(seconds: float) -> None:
    """Let every rank, if there are several, wait for the others for so long at most, from now on: all are ready."""
    if _group is None:
        return
    from torch.distributed import distributed_c10d

    limit = timedelta(seconds=seconds)
    distributed_c10d._set_pg_timeout(limit, _group.control)
    for group in distributed_c10d._world.pg_map:
        distributed_c10d._set_pg_timeout(limit, group)


def agreed(values: Sequence[int]) -> list[int]:
    """Return the values that rank 0 gave; every rank gives as many. In a single process its own."""
    if _group is None:
        return list(values)
    import torch
    from torch import distributed

    shared = torch.tensor(values, dtype=torch.long)
    distributed.broadcast(shared, 0, group=_group.control)
    return shared.tolist()


def given(value: Any) -> Any:
    """Return what rank 0 gave, whatever the others give. In a single process its own."""
    if _group is None:
        return value
    from torch import distributed

    shared = [value]
    distributed.broadcast_object_list(shared, 0, group=_group.control)
    return shared[0]


@contextmanager
def together() -> Iterator[None]:
    """Turn the end of another rank, or too long a silence, into an EnvironmentFault with a sentence: otherwise its
    collectives fail in this process, and torchrun sends SIGTERM.
    """
    try:
        yield
    except (RuntimeError, Terminated) as error:
        if _group is None:
            raise
        # torchrun's SIGTERM is on its way, or came first where this process was slow: what was done is written first.
        answer = signal.signal(signal.SIGTERM, signal.SIG_IGN)
        wait = _NOTICED_S if isinstance(error, RuntimeError) else 0.0
        gone = _gone(wait)
        if not gone and (isinstance(error, Terminated) or not _COLLECTIVE.search(str(error))):
            signal.signal(signal.SIGTERM, answer)
            raise
        signals.forget()  # the fault of the other rank is what ends this one
        fault = "ended" if gone else f"was silent for {SILENCE_S:.0f} s or broke its connection"
        who = f"Rank {', '.join(map(str, gone))}" if gone else "Another rank"
        raise EnvironmentFault(
            f"{who} of the {count()} processes of this tensor-parallel run {fault}, and the others cannot go on "
            "without it; its own message, if it had one, stands beside this one. What was finished is on disk."
        ) from error


def _gone(wait: float) -> list[int]:
    """Return the ranks on this machine whose process has ended, or ends within `wait` seconds."""
    import socket

    assert _group is not None
    here = socket.gethostname()
    until = time.monotonic() + wait
    while True:
        gone = [
            number
            for number, (host, process) in enumerate(_group.processes)
            if host == here and process != os.getpid() and _ended(process)
        ]
        if gone or time.monotonic() > until:
            return gone
        time.sleep(0.05)


def _ended(process: int) -> bool:
    import psutil

    try:
        return bool(psutil.Process(process).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
