"""Measures the memory that a device has left for what is about to be allocated."""

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
    import psutil  # here, because the script for GPUs runs without it

    machine, container = psutil.virtual_memory().available, _left_by_cgroup(_CGROUPS)
    return machine if container is None else min(machine, container)


def _left_by_cgroup(root: Path) -> int | None:
    """Return the bytes that a container's limit leaves, file caches counted as free; None without a limit. Version 2 of
    cgroups is asked first, then version 1.
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
