"""The machine's rates are those of the best time, over a buffer that no cache holds."""

import json

import torch

from specdec.timing import machine
from specdec.timing.machine import buffer_bytes, measure_machine


def test_the_buffer_exceeds_the_caches(tmp_path):
    assert buffer_bytes(tmp_path) == 2**28
    for index, size in enumerate(("48K", "2048K", "32768K")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert buffer_bytes(tmp_path) == 4 * 2**25
    (tmp_path / "index2" / "size").write_text("2048M\n")
    assert buffer_bytes(tmp_path) == 2**30


def test_rates_are_bytes_and_operations_over_the_best_time(monkeypatch):
    """Every kernel takes 2 s, then 1 s: a copy of half the buffer reads and writes it, a product multiplies, adds."""
    monkeypatch.setattr(machine, "buffer_bytes", lambda: 2**24)
    monkeypatch.setattr(machine.Timer, "seconds", lambda self, case: [2.0, 1.0])
    facts = measure_machine(torch.device("cpu"), torch.float32, rows=(3,), seconds=0.0)
    assert facts["bandwidth"] == {"read": 2**24, "copy": 2**24}
    assert facts["throughput"] == {3: 2 * 3 * 1024 * 1024}
    assert (facts["bytes_per_second"], facts["flops_per_second"]) == (2**24, facts["throughput"][3])
    assert facts["threshold"] == facts["flops_per_second"] / facts["bytes_per_second"]
    assert facts["dtype"] == "float32" and facts["buffer_bytes"] == 2**24
    json.dumps(facts)
