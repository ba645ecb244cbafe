"""What is recorded about the machine, and that nothing private is."""

import getpass
import json
import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from specdec import environment


def test_a_capture_is_complete_and_private(monkeypatch):
    monkeypatch.setenv("SPECDEC_TEST_SECRET", "hunter2hunter2")
    monkeypatch.setattr(sys, "argv", ["specdec", "tracking.uri=http://me:hunter2hunter2@host"])
    facts = environment.capture(torch.device("cpu"), {"seed": 3})
    text = json.dumps(facts)
    assert "hunter2" not in text and f'"{socket.gethostname()}"' not in text
    assert facts["seeds"] == {"seed": 3} and facts["argv"][1] == "tracking.uri=http://***@host"
    assert {"python", "specdec", "torch", "transformers", "mlflow", "hydra", "numpy"} <= facts["versions"].keys()
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["distributions"]["hydra-core"] == facts["versions"]["hydra"]
    assert facts["cpu"]["model"] and facts["cpu"]["torch_threads"] == torch.get_num_threads()
    assert facts["memory_gib"] > 0 and "gpu" not in facts
    assert getpass.getuser() not in {value for value in facts.values() if isinstance(value, str)}


def test_commit_and_dirtiness_are_those_of_the_checkout(tmp_path):
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *identity, "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    assert environment.code_state(tmp_path) is None
    git("init")
    assert environment.code_state(tmp_path) is None  # no commit yet
    git("commit", "--allow-empty", "-m", "first")
    clean = environment.code_state(tmp_path)
    assert clean is not None and len(clean["commit"]) == 40 and clean["dirty"] is False
    (tmp_path / "new.py").write_text("")
    assert environment.code_state(tmp_path) == clean | {"dirty": True}
    (tmp_path / "inside").mkdir()
    assert environment.code_state(tmp_path / "inside") is None  # an enclosing repository is somebody else's


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(name="A GPU", total_memory=80 * 2**30, major=9, minor=0, uuid="u-1")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


def nvml(**changes: Any) -> SimpleNamespace:
    """A stand-in for nvidia-ml-py: one GPU that its power limit slows down and that has no thermometer."""

    def missing(*_: Any) -> int:
        raise OSError("Not Supported")

    values: dict[str, Any] = {
        "NVML_CLOCK_SM": 1, "NVML_CLOCK_MEM": 2, "NVML_TEMPERATURE_GPU": 0,
        "nvmlClocksThrottleReasonGpuIdle": 1, "nvmlClocksThrottleReasonSwPowerCap": 4,
        "nvmlClocksThrottleReasonHwSlowdown": 8, "nvmlClocksThrottleReasonAll": 15,
        "nvmlInit": lambda: None, "nvmlShutdown": lambda: None,
        "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlSystemGetDriverVersion": lambda: "580.1",
        "nvmlDeviceGetClockInfo": lambda handle, clock: 1000 * clock,
        "nvmlDeviceGetMaxClockInfo": lambda handle, clock: 2000 * clock,
        "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700000,
        "nvmlDeviceGetTemperature": missing,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 5,
    }  # fmt: skip
    return SimpleNamespace(**(values | changes))


def test_a_gpu_is_described_by_nvml(monkeypatch, cuda):
    monkeypatch.setitem(sys.modules, "pynvml", nvml())  # type: ignore[arg-type]
    notes: list[str] = []
    facts = environment.gpu(torch.device("cuda"), notes)
    expected = {"name": "A GPU", "driver": "580.1", "sm_mhz": 1000, "memory_mhz_max": 4000, "power_limit_w": 700}
    assert expected.items() <= facts.items() and facts["throttled_by"] == ["SwPowerCap"]
    assert notes == ["NVML gives no temperature_c: Not Supported."] and "u-1" not in str(facts)


@pytest.mark.parametrize("library", [None, nvml(nvmlInit=lambda: 1 / 0)])
def test_without_nvml_a_note_says_what_is_missing(monkeypatch, cuda, library):
    monkeypatch.setitem(sys.modules, "pynvml", library)
    notes: list[str] = []
    assert environment.gpu(torch.device("cuda:0"), notes)["name"] == "A GPU"
    assert len(notes) == 1 and notes[0].startswith("No driver, clocks or throttling")
