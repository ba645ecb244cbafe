"""The GPU measurement's page, on a file with numbers that are known beforehand."""

import json

import pytest

from specdec.analysis.research.gpu_limit import GpuMeasurement, answer, calls_table, read_gpu
from specdec.errors import UsageError


def times(median):
    return {"median_s": median, "low_s": 0.9 * median, "high_s": 1.2 * median, "times": 20}


FOUND = {
    "measured": True,
    "captured": "2027-01-02T03:04:05Z",
    "commit": "0123456789abcdef",
    "device": {"name": "A GPU"},
    "versions": {"torch": "2.11.0"},
    "sections": {
        "correctness": {
            "status": "done", "complete": True, "tolerance": 0.1, "text": {"tokens": 64, "same": 60},
            "calls": [{"model": "target", "tokens": 1, "how": "captured", "departure": 0.02, "right": True},
                      {"model": "target", "tokens": 6, "how": "captured", "departure": 0.3, "right": False}],
            "drafts": [{"gamma": 5, "how": "captured", "departure": 0.01, "right": True}],
            "error": "ArithmeticError: 1 passes depart",
        },
        "calls": {
            "status": "out of time", "complete": False, "bandwidth_bytes_per_s": 3e12, "context": 512,
            "models": {"target": {"parameters": 6.74e9, "weight_bytes": 13.5e9, "read_bytes": 13.2e9,
                                  "limit_s": 4.4e-3}},
            "rows": [{"model": "target", "tokens": n, "how": how, **times(seconds)}
                     for n, how, seconds in ((1, "eager", 22e-3), (1, "captured", 5.5e-3), (6, "captured", 6.6e-3))],
        },
        "rounds": {
            "status": "done", "complete": True, "gamma": 5,
            "rows": [{"shape": "chain", "how": "captured", "nodes": 5, "waits": 1, "round": times(12e-3),
                      "draft": times(5e-3), "verify": times(6.6e-3)}],
        },
        "overhead": {"status": "done", "complete": True,
                     "rows": [{"how": "captured", "round_s": 12e-3, "kernels_s": 11.4e-3, "share": 0.05}]},
        "oracle": {
            "status": "done", "complete": True, "t1_s": 5.5e-3,
            "rows": [{"gamma": 5, "alpha": 0.8, "v": 1.2, "c": 0.18, "omega": 3.68928, "formula": 1.757,
                      "tokens_per_round": 3.6, "limit": 1.714, "speedup": 1.6, "realised": 0.9335}],
        },
        "peers": {"status": "failed", "complete": False, "error": "RuntimeError: no peer"},
        "memory": {"status": "done", "complete": True, "peak_bytes": 17e9, "graph_bytes": 0.5e9,
                   "target": {"weight_bytes": 13.5e9, "cache_bytes": 0.5e9, "slots": 1024}},
    },
}  # fmt: skip


def test_every_section_answers_with_its_numbers():
    measurement = GpuMeasurement(FOUND, "gpu.json")
    assert measurement.origin.startswith("Measured on A GPU, torch 2.11.0, commit 0123456789ab")
    sections = measurement.sections()
    said = " ".join(text for section in sections for text in section.text)
    for words in (
        "2 of 3 captured passes",
        "depart by 0.3 at most, and 0.1 is allowed",
        "It failed: ArithmeticError",
        "(6.74 G parameters) takes 1.25 times as long",
        "an eager call takes 4.0 times as long",
        "at the measured 3000 GB/s",
        "Time ran out",
        "a chain of 5 nodes takes 12.00 ms, and the host waits 1 time in it",
        "5% captured.",
        "best speedup is 1.60 at alpha 0.8 and gamma 5",
        "Nothing was measured. It failed: RuntimeError: no peer.",
        "take 14.00 GB. The peak was 17.00 GB",
    ):
        assert words in said
    assert len(sections) == 7 and answer(sections).count("\n- ") == 6
    table = calls_table(FOUND["sections"]["calls"])
    assert table["x weights"].tolist() == pytest.approx([5.0, 1.25, 1.5])
    assert table["ms"].tolist() == pytest.approx([22, 5.5, 6.6]) and table["low"].iloc[0] == pytest.approx(19.8)
    toys = GpuMeasurement({**FOUND, "measured": False}, "gpu.json")
    assert toys.origin.startswith("No figure here comes from a GPU") and "python tests/benchmarks/gpu.py" in toys.origin


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "gpu.json"
    assert read_gpu(path) is None
    for content in ("{", "[]", "{}", json.dumps({"sections": []})):
        path.write_text(content)
        with pytest.raises(UsageError, match=r"gpu\.json was not written by the GPU measurement"):
            read_gpu(path)
    path.write_text(json.dumps(FOUND))
    assert read_gpu(path).measured
    older = {**FOUND, "sections": {"oracle": {"status": "done", "complete": True, "rows": [{"gamma": 1}]}}}
    with pytest.raises(UsageError, match="section 'oracle' lacks"):
        GpuMeasurement(older, "gpu.json").sections()
