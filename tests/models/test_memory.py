"""What the system says about its memory, from files written for the purpose."""

from types import SimpleNamespace

import psutil
import torch

from specdec.models import memory


def test_this_machine_says_something():
    free = memory.available_bytes(torch.device("cpu"))
    assert free > 0
    assert memory.available_bytes(torch.device("meta")) is None, "no check where nothing is known"


def test_a_container_has_its_limit(tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 150\n")
    assert memory._left_by_cgroup(tmp_path) == 450
    (tmp_path / "memory.max").write_text("max\n")
    assert memory._left_by_cgroup(tmp_path) is None
    older = tmp_path / "older" / "memory"
    older.mkdir(parents=True)
    (older / "memory.limit_in_bytes").write_text("1000\n")
    (older / "memory.usage_in_bytes").write_text("1100\n")
    (older / "memory.stat").write_text("total_inactive_file 40\n")
    assert memory._left_by_cgroup(tmp_path / "older") == 0
    assert memory._left_by_cgroup(tmp_path / "absent") is None


def test_the_smaller_of_the_two_counts(monkeypatch):
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=10))
    for limit, free in ((None, 10), (4, 4), (40, 10)):
        monkeypatch.setattr(memory, "_left_by_cgroup", lambda root, limit=limit: limit)
        assert memory.available_bytes(torch.device("cpu")) == free
