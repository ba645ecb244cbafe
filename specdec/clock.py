"""Clocks: `perf_counter` on a CPU, device events on a GPU, so that reading the clock does not stall the device."""

import time
from abc import ABC, abstractmethod

import torch

from specdec.disturbance import Watch, watch_of


class Clock(ABC):
    """`mark` reads the clock; `seconds` turns two readings into a duration, once the device is synchronised."""

    watch = Watch()  # sees that other work disturbed a duration

    @abstractmethod
    def mark(self) -> object: ...

    @abstractmethod
    def seconds(self, start: object, end: object) -> float: ...

    def synchronize(self) -> None:
        """Wait for the device; call before `seconds`, never inside a round."""


class CpuClock(Clock):
    def mark(self) -> object:
        return time.perf_counter()

    def seconds(self, start: object, end: object) -> float:
        assert isinstance(start, float) and isinstance(end, float)
        return end - start


class CudaClock(Clock):
    """Records events on the device's current stream; a duration is the time on the device, idle gaps included."""

    def __init__(self, device: torch.device) -> None:
        self._device = device  # not always the process's current one, on whose stream an event would be by itself

    def mark(self) -> object:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds(self, start: object, end: object) -> float:
        assert isinstance(start, torch.cuda.Event) and isinstance(end, torch.cuda.Event)
        return start.elapsed_time(end) / 1000

    def synchronize(self) -> None:
        torch.cuda.synchronize(self._device)


class SimulatedClock(CpuClock):
    """A clock that only moves by `advance`: real work takes no time on it."""

    def __init__(self) -> None:
        self._now = 0.0

    def advance(self, seconds: float) -> None:
        self._now += seconds

    def reach(self, reading: float) -> None:
        """Move to a later reading, at which work ends that was added up elsewhere."""
        self._now = reading

    def mark(self) -> float:
        return self._now


def clock_for(device: torch.device) -> Clock:
    """Return a clock for the work on a device, which is watched."""
    clock = CudaClock(device) if device.type == "cuda" else CpuClock()
    clock.watch = watch_of(device)
    return clock
