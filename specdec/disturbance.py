"""The time that other work on the machine took from this process: its threads waited for a processor, the host stole
from its processors, its GPU was held back or shared. It is read between rounds, never inside of one.

Sources: `/proc/self/task/*/schedstat` (second field) and `/proc/stat` (steal), both in Linux' Documentation (scheduler/
sched-stats, filesystems/proc); `getrusage` where they are missing; NVML. A neighbour that only takes memory bandwidth,
caches or clock speed is not seen by any of them.
"""

import os
import resource
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import TypeVar

import torch

from specdec.errors import EnvironmentFault

T = TypeVar("T")

SHARE = 0.05  # of the processors that other work takes, from which on a machine is not quiet
# Share of a duration that threads waited, above which it is disturbed. Half of it would count what the kernel does on a
# quiet machine, whose milliseconds change no mean.
_LOST = 0.1
_LISTED_S, _REFRESHED_S = 1.0, 0.1  # between two listings of the threads, and two readings of what is read seldom
# Between two readings of what threads waited: one takes some 50 microseconds where calls have filled the caches.
_APART_S = 0.015
_BUSY = 0.05  # of the time since the last listing that a thread ran or waited, for it to count: not a progress line
_MOST_THREADS = 64  # whose waiting is read
_SWITCH_S = 0.001  # that an involuntary switch is taken to last where waiting itself cannot be read
_PROBED_S, _AWAITED_S = 1.0, 600.0  # of a look at other work, and that a quiet machine is waited for
_TRIES = 5  # of what is timed alone and was disturbed
_KEPT = 10_000  # windows in which something was lost that are remembered


def disturbed(waited: float, seconds: float) -> bool:
    """Return True if what took `seconds` is not to be used as it is, for the `waited` seconds in it."""
    return waited > _LOST * seconds


class _Windows:
    """Stretches of time, one after another, and what was lost in each; it is spread evenly over its stretch."""

    def __init__(self) -> None:
        self._all: list[tuple[float, float, float]] = []  # begin, end, seconds lost in between

    def add(self, begin: float, end: float, lost: float) -> None:
        if lost > 0:
            self._all.append((begin, end, lost))
            if len(self._all) > 2 * _KEPT:
                del self._all[:_KEPT]

    def within(self, begin: float, end: float) -> float:
        """Return the seconds lost between two times."""
        first, lost = bisect_right(self._all, begin, key=itemgetter(1)), 0.0
        for since, until, seconds in islice(self._all, first, None):
            if since >= end:
                break
            lost += seconds * (min(until, end) - max(since, begin)) / (until - since)
        return lost


class Watch:
    """Reads what this process lost to other work; this one reads nothing, for simulated time."""

    blind = ""  # a sentence on what cannot be seen here; "" where all can

    def read(self) -> float:
        """Return the time of a reading, in seconds; to be called right before and right after what is watched."""
        return 0.0

    def waited(self, before: float, after: float) -> float:
        """Return the seconds lost between two readings: by all threads together, and by all processors to the host."""
        return 0.0

    def others(self, seconds: float) -> float | None:
        """Return the share of our processors that other work takes in the next seconds; None where it is not shown."""
        return None

    def await_quiet(self, seconds: float = 1.0) -> None:
        """Wait until others take under 5% of the processors over `seconds`. EnvironmentFault: not in ten minutes."""
        from specdec.progress import stage  # the script for a GPU machine runs without what draws it

        share = self.others(seconds)
        if share is None or share < SHARE:
            return
        with stage("Wait for a quiet machine", f"other work takes {share:.0%} of its processors") as under_way:
            while (share := self.others(_PROBED_S) or 0.0) >= SHARE:
                if under_way.elapsed > _AWAITED_S:
                    raise EnvironmentFault(
                        f"Other work took {share:.0%} of the processors for {_AWAITED_S / 60:g} minutes: run when the "
                        "machine is quiet, or use measurement.quiet=report."
                    )
                under_way.advance()

    def undisturbed(self, trial: Callable[[], T]) -> T:
        """Return what a trial gives that times something; it is made again while it was disturbed, a few times."""
        for _ in range(_TRIES):
            before, began = self.read(), time.perf_counter()
            result = trial()
            seconds = time.perf_counter() - began
            if not disturbed(self.waited(before, self.read()), seconds):
                break
        return result


class ProcessWatch(Watch):
    """Watches this process. Readings are 15 milliseconds apart or more: what was lost in between is spread evenly."""

    def __init__(
        self, gpu: Callable[[], bool] | None = None, missing: Sequence[str] = (), proc: Path = Path("/proc")
    ) -> None:
        """Read the files of the kernel in `proc`, and `gpu` (`gpu_watch`); `blind` says what else is `missing`."""
        missing = [*missing]
        self._tasks, self._gpu = proc / "self" / "task", gpu
        self._files: dict[str, int] = {}  # thread: its open schedstat
        self._asked: dict[str, int] = {}  # thread: nanoseconds that it had run and waited at the last listing
        self._counted: list[int] = []
        self._base = 0  # nanoseconds, so that the sum goes on where other threads are counted
        self._listed = self._refreshed = -1.0
        self._waits, self._stalls = _Windows(), _Windows()  # by threads; by processors and the GPU
        self._stat = _opened(proc / "stat")
        self._processors = {f"cpu{number}" for number in affinity()}
        self._list(time.perf_counter())
        self._scheduled = any(_fields(file)[0] for file in self._counted)
        if not self._scheduled:
            missing.append("how long threads wait for a processor (involuntary switches stand in for it)")
        self._read, self._waited = time.perf_counter(), self._waiting()
        self._stolen = self._steal()
        if self._stolen is None:
            missing.append("what a host steals")
        if len(affinity()) < torch.get_num_threads():
            self.blind = (
                f"{torch.get_num_threads()} threads compute on {len(affinity())} processors and wait for one another, "
                "which cannot be told from other work: lower measurement.threads."
            )
        elif missing:
            self.blind = f"This machine does not show {' and '.join(missing)}: other work on it may go unseen."

    def read(self) -> float:
        now = time.perf_counter()
        if now - self._refreshed > _REFRESHED_S:
            self._refresh(now)
        if now - self._read < _APART_S:
            return now
        self._close()
        return self._read

    def waited(self, before: float, after: float) -> float:
        if after > self._refreshed:
            self._refresh(time.perf_counter())
        if after > self._read:
            self._close()
        return self._waits.within(before, after) + self._stalls.within(before, after)

    def _close(self) -> None:
        """Note what the threads waited since the last time."""
        waited, now = self._waiting(), time.perf_counter()
        self._waits.add(self._read, now, (waited - self._waited) * 1e-9)
        self._read, self._waited = now, waited

    def others(self, seconds: float) -> float | None:
        if self._steal() is None:
            return None
        busy, own, began = self._busy(), time.process_time(), time.perf_counter()
        time.sleep(seconds)
        took = self._busy() - busy - (time.process_time() - own)
        # The kernel counts in ticks, which may lie on either side of the second.
        return min(1.0, max(0.0, took / (time.perf_counter() - began) / len(self._processors)))

    def _busy(self) -> float:
        """Return the seconds that this process's processors have not been idle, steal included."""
        return sum(sum(ticks) - ticks[3] - ticks[4] for ticks in self._ticks()) / os.sysconf("SC_CLK_TCK")

    def _ticks(self) -> list[list[int]]:
        """Return ticks by own processor: user, nice, system, idle, iowait, irq, softirq, steal; [] if not shown."""
        if self._stat is None:
            return []
        lines = (line.split() for line in os.pread(self._stat, 1 << 16, 0).decode("ascii").splitlines())
        return [[*map(int, line[1:9])] for line in lines if line[:1] and line[0] in self._processors and len(line) > 8]

    def _waiting(self) -> int:
        """Return how many nanoseconds the threads that compute have waited so far."""
        if not self._scheduled:
            return int(resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw * _SWITCH_S * 1e9)
        return self._base + sum(_fields(file)[1] for file in self._counted)

    def _refresh(self, now: float) -> None:
        """Read what costs more, and note what was lost since the last time."""
        stolen, begin = self._steal(), self._refreshed
        lost = 0.0 if stolen is None or self._stolen is None else stolen - self._stolen
        if self._gpu is not None and self._gpu():
            lost += now - begin
        if begin > 0:
            self._stalls.add(begin, now, lost)
        self._stolen, self._refreshed = stolen, now
        if now - self._listed > _LISTED_S:
            before = self._waiting()
            self._list(now)
            self._base += before - self._waiting()

    def _steal(self) -> float | None:
        """Return the seconds that the host has stolen from this process's processors; None where it is not shown."""
        stolen = [ticks[7] for ticks in self._ticks()]
        return sum(stolen) / os.sysconf("SC_CLK_TCK") if stolen else None

    def _list(self, now: float) -> None:
        """Choose the threads whose waiting counts: those that computed since the last listing, or waited to."""
        threads: list[str] = []
        with suppress(OSError):
            threads = os.listdir(self._tasks)
        for gone in self._files.keys() - set(threads):
            os.close(self._files.pop(gone))
            self._asked.pop(gone, None)
        for new in set(threads) - self._files.keys():
            file = _opened(self._tasks / new / "schedstat")
            if file is not None:
                self._files[new] = file
        asked = {thread: sum(_fields(file)) for thread, file in self._files.items()}
        since = {thread: total - self._asked.get(thread, 0) for thread, total in asked.items()}
        least = 0 if self._listed < 0 else _BUSY * (now - self._listed) * 1e9
        chosen = sorted((thread for thread in since if since[thread] >= least), key=lambda thread: -since[thread])
        self._counted = [self._files[thread] for thread in chosen[:_MOST_THREADS]]
        self._asked, self._listed = asked, now


@lru_cache
def watch_of(device: torch.device) -> Watch:
    """Return the watch of this process, which computes on a device."""
    if device.type != "cuda":
        return ProcessWatch()
    gpu = gpu_watch(f"GPU-{torch.cuda.get_device_properties(device).uuid}")
    return ProcessWatch(gpu, ("whether the GPU is throttled or shared (pip install nvidia-ml-py)",) * (gpu is None))


def gpu_watch(uuid: str) -> Callable[[], bool] | None:
    """Return a function that says whether a GPU is held back, by heat or a failing supply, or computes for others; None
    where NVML does not answer. A power cap under one's own load is no disturbance; and where a container shows the
    process itself under another number, others cannot be told from it and are not counted.
    """
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    except Exception:  # no package, no driver, no permission: each has an error of its own
        return None
    own = os.getpid()
    slowdown = (
        pynvml.nvmlClocksThrottleReasonHwSlowdown
        | pynvml.nvmlClocksThrottleReasonSwThermalSlowdown
        | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown
        | pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown
    )
    seen = int(time.time() * 1e6)  # of the samples of use by process

    def held_back() -> bool:
        nonlocal seen
        if pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & slowdown:
            return True
        if own not in {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)}:
            return False
        try:
            samples = pynvml.nvmlDeviceGetProcessUtilization(handle, seen)
        except pynvml.NVMLError:  # there is no new sample
            return False
        seen = max([seen, *(sample.timeStamp for sample in samples)])
        return any(sample.pid != own and sample.smUtil > 100 * _BUSY for sample in samples)

    return held_back


def affinity() -> set[int]:
    """Return the numbers of the processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _opened(path: Path) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _fields(file: int) -> list[int]:
    """Return how many nanoseconds a thread has run and waited; zeros once it has ended, or where neither is shown."""
    with suppress(OSError, ValueError):
        return [*map(int, os.pread(file, 64, 0).split()[:2])] or [0, 0]
    return [0, 0]
