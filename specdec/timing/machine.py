"""Measures what this machine can do at best: bytes read per second and operations per second in a model's dtype.

The ceiling that a call's own figures are set against (theory.md 7.1). Takes a few hundred milliseconds and two large
buffers, so it runs apart from anything timed, and after the peak of memory has been read.
"""

import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from specdec.clock import clock_for
from specdec.theory.roofline import threshold
from specdec.timing.timer import Timer

_SECONDS = 0.4  # for all kernels together, after one warm-up call of each


@torch.inference_mode()
def measure_machine(
    device: torch.device, dtype: torch.dtype, rows: Sequence[int] = (16, 64, 256), seconds: float = _SECONDS
) -> dict[str, Any]:
    """Time reads and copies larger than the caches and matrix products on `rows` rows, interleaved; keep the best.
    Raises torch.OutOfMemoryError: no room for the buffers on a GPU.

    Return `bytes_per_second` and `flops_per_second`, the best rates of all, and `threshold`, the intensity where they
    meet; bandwidth: bytes per second, by kernel: "read" (a sum) and "copy" (read and written bytes count); throughput:
    floating-point operations per second, by rows of the matrix product; dtype: of the products; buffer_bytes: size of
    what was read, several times the last-level cache.
    """
    cuda = device.type == "cuda"
    size = 2**30 if cuda else buffer_bytes()
    source = torch.ones(size // 4, dtype=torch.float32, device=device)
    half = source.numel() // 2
    width = 8192 if cuda else 1024
    matrix = torch.ones(width, width, dtype=dtype, device=device)
    kernels: dict[str | int, Callable[[], Any]] = {
        "read": source.sum,
        "copy": partial(source[:half].copy_, source[half : 2 * half]),
    }
    for n in rows:
        kernels[n] = partial(torch.nn.functional.linear, torch.ones(n, width, dtype=dtype, device=device), matrix)
    for kernel in kernels.values():
        kernel()
    timer = Timer(clock_for(device), sys.maxsize, torch.Generator(), seconds)
    for _ in timer.passes():
        for name, kernel in kernels.items():
            timer.time(name, kernel)
    best = {name: min(timer.seconds(name)) for name in kernels}
    bandwidth = {"read": size / best["read"], "copy": 2 * 4 * half / best["copy"]}
    throughput = {n: 2 * n * width**2 / best[n] for n in rows}
    reading, computing = max(bandwidth.values()), max(throughput.values())
    return {
        "bandwidth": bandwidth,
        "throughput": throughput,
        "dtype": str(dtype).removeprefix("torch."),
        "buffer_bytes": size,
        "bytes_per_second": reading,
        "flops_per_second": computing,
        "threshold": threshold(reading, computing),
    }


def buffer_bytes(caches: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Return four times the largest cache that the system names, from 64 MiB to 1 GiB; 256 MiB where it names none."""
    sizes = [re.match(r"(\d+)([KM])", path.read_text(encoding="ascii")) for path in caches.glob("index*/size")]
    largest = max((int(size[1]) << (20 if size[2] == "M" else 10) for size in sizes if size), default=2**26)
    return min(max(4 * largest, 2**26), 2**30)
