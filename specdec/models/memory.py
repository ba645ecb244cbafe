"""Measures the memory that a device has left for what is about to be allocated."""

import os
from contextlib import suppress
from pathlib import Path

import torch

_CGROUPS = Path("/sys/fs/cgroup")


def available_bytes(device: torch.device) -> int | None:
    """Return the bytes that can still be allocated on a device; None where the system does not say."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type != "cpu":
        return None
    known = [size for size in (_of_the_machine(), _of_the_cgroup(_CGROUPS)) if size is not None]
    return min(known, default=None)


def _of_the_machine(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Return the bytes that can be had without swapping; where that is not known, all memory of the machine."""
    with suppress(OSError):
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _of_the_cgroup(root: Path) -> int | None:
    """Return the bytes that a container's limit leaves, file caches counted as free; None without a limit.

    Version 2 of cgroups is asked first, then version 1.
    """
    for limit, used, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most = (root / limit).read_text(encoding="ascii").strip()
            if most == "max":
                return None
            taken = int((root / used).read_text(encoding="ascii"))
            lines = (root / limit).with_name("memory.stat").read_text(encoding="ascii").splitlines()
        except (OSError, ValueError):
            continue
        reclaimable = dict(line.split() for line in lines).get(cache, "0")
        return max(0, int(most) - taken + int(reclaimable))
    return None
