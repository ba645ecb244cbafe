"""Records what a number depends on besides the configuration: machine, versions, code; no host name, and no environment
variable. What cannot be found out is left out, or explained in `notes`; nothing here raises.
"""

import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import torch

from specdec.disturbance import affinity
from specdec.tracking.store import without_password

VERSIONS = ("torch", "transformers", "mlflow", "hydra-core", "numpy")
CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "bf16")  # they decide a dtype's speed
ROOT = Path(__file__).resolve().parents[1]


def capture(device: torch.device, seeds: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Return the content of `environment.json`. It takes a fraction of a second; call it outside of anything timed."""
    notes: list[str] = []
    facts = {
        "captured": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "argv": [without_password(argument) for argument in sys.argv],
        "seeds": dict(seeds or {}),
        "device": str(device),
        "versions": versions(),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "code": code_state(),
        "cpu": cpu(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "gpu": gpu(device, notes) if device.type == "cuda" else None,
        "distributions": distributions(),
        "notes": notes,
    }
    return {key: value for key, value in facts.items() if value is not None}


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in ("specdec-workbench", *VERSIONS):
        for candidate in (f"{name}-skinny", name):  # the second one counts where both are there
            with suppress(metadata.PackageNotFoundError):
                found[name.removesuffix("-workbench").removesuffix("-core")] = metadata.version(candidate)
    return found


@cache
def distributions() -> dict[str, str]:
    """Return every installed distribution with its version, as `pip freeze` knows them."""
    found = {str(each.metadata["Name"]): each.version for each in metadata.distributions() if each.metadata}
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def code_state(root: Path = ROOT) -> dict[str, Any] | None:
    """Return commit and dirtiness of the checkout that specdec runs from; None when it runs from a wheel."""
    if not (root / ".git").exists():  # an enclosing repository would be the user's, not ours
        return None
    git = ("git", "-C", str(root), "--no-optional-locks")
    try:
        commit, changes = (
            subprocess.run([*git, *arguments], capture_output=True, text=True, timeout=10, check=True).stdout.strip()
            for arguments in (("rev-parse", "HEAD"), ("status", "--porcelain"))
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "dirty": bool(changes)}


def cpu() -> dict[str, Any]:
    """Return model, cores, torch's threads, and how busy the machine was when asked."""
    information = ""
    with suppress(OSError):
        information = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    model = re.search(r"^(?:model name|Hardware)\s*:\s*(.+)$", information, re.M)
    flags = re.search(r"^(?:flags|Features)\s*:(.*)$", information, re.M)
    flag_names = flags[1].split() if flags else []
    frequency = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
    return {
        "model": model[1].strip() if model else platform.processor() or platform.machine(),
        "physical_cores": psutil.cpu_count(logical=False),
        "logical_cores": psutil.cpu_count(),
        "usable_cores": len(affinity()),
        "mhz": round(frequency.current) if frequency else None,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "flags": [flag for flag in CPU_FLAGS if flag in flag_names],
        "torch_threads": torch.get_num_threads(),
        "torch_interop_threads": torch.get_num_interop_threads(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def gpu(device: torch.device, notes: list[str]) -> dict[str, Any]:
    """Return name and memory by torch; driver, clocks, power, throttling by NVML where nvidia-ml-py is installed."""
    properties = torch.cuda.get_device_properties(device)
    facts: dict[str, Any] = {
        "name": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "capability": f"{properties.major}.{properties.minor}",
        "count": torch.cuda.device_count(),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }
    try:
        import pynvml
    except ImportError:
        notes.append("No driver, clocks or throttling: nvidia-ml-py is not installed (extra: gpu).")
        return facts
    try:
        pynvml.nvmlInit()
        try:
            facts |= _nvml(pynvml, f"GPU-{properties.uuid}", notes)
        finally:
            pynvml.nvmlShutdown()
    except Exception as error:  # NVMLError, and whatever an old driver lacks
        notes.append(f"No driver, clocks or throttling from NVML: {type(error).__name__}: {error}.")
    return facts


def _nvml(nvml: Any, uuid: str, notes: list[str]) -> dict[str, Any]:
    """Return facts of one GPU, found by uuid because CUDA_VISIBLE_DEVICES renumbers; the uuid itself is not kept."""
    handle = nvml.nvmlDeviceGetHandleByUUID(uuid)

    def throttling() -> list[str]:
        reasons, prefix = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle), "nvmlClocksThrottleReason"
        names = {name.removeprefix(prefix) for name in dir(nvml) if name.startswith(prefix)}
        return sorted(name for name in names - {"All", "None", "GpuIdle"} if getattr(nvml, prefix + name) & reasons)

    readings = {
        "driver": lambda: nvml.nvmlSystemGetDriverVersion(),
        "sm_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "sm_mhz_max": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "memory_mhz_max": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_MEM),
        "power_limit_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        "throttled_by": throttling,
    }
    facts = {}
    for name, reading in readings.items():
        try:
            facts[name] = reading()
        except Exception as error:  # a reading that this device or driver does not have
            notes.append(f"NVML gives no {name}: {error}.")
    return facts
