"""The GPU measurement's page, on the committed measurement, some of whose parts are made to fail."""

import json
from typing import Any

import pytest

from specdec.analysis.research.gpu_limit import RESULT, GpuMeasurement, read_gpu
from specdec.errors import UsageError


@pytest.fixture
def kept() -> dict[str, Any]:
    return json.loads(RESULT.read_text(encoding="utf-8"))


def test_every_section_answers_with_its_numbers(kept):
    parts = kept["sections"]
    wrong, *right = (row for name in ("calls", "drafts") for row in parts["correctness"][name])
    wrong |= {"departure": 0.75, "right": False}
    parts["correctness"]["error"] = "ArithmeticError: 1 passes depart"
    parts["calls"] |= {"status": "out of time", "complete": False}
    parts["peers"] = {"status": "failed", "complete": False, "error": "RuntimeError: no peer"}
    single = [row for row in parts["calls"]["rows"] if (row["model"], row["tokens"]) == ("target", 1)]
    eager, best = single[0]["median_s"], min(row["median_s"] for row in single)
    fastest = max(parts["oracle"]["rows"], key=lambda row: row["speedup"])
    measurement = GpuMeasurement(kept, "gpu.json")
    assert measurement.origin.startswith(f"Measured on {kept['device']['name']}, torch {kept['versions']['torch']}, ")
    sections = measurement.sections()
    said = " ".join(text for section in sections for text in section.text)
    for words in (
        f"{len(right)} of {len(right) + 1} captured passes",
        "depart by 0.75 at most",
        "It failed: ArithmeticError",
        f"takes {best / parts['calls']['models']['target']['limit_s']:.2f} times as long for a call on one token",
        f"an eager call takes {eager / best:.1f} times as long",
        f"at the measured {parts['calls']['bandwidth_bytes_per_s'] / 1e9:.0f} GB/s",
        "Time ran out",
        "and the host waits 1 time in it",
        f"{parts['overhead']['rows'][-1]['share']:.0%} captured.",
        f"best speedup is {fastest['speedup']:.2f} at alpha {fastest['alpha']} and gamma {fastest['gamma']}",
        "Nothing was measured. It failed: RuntimeError: no peer.",
        f"The peak was {parts['memory']['peak_bytes'] / 1e9:.2f} GB",
    ):
        assert words in said
    (_, calls), milliseconds = sections[1].tables[0], 1e3 * parts["calls"]["rows"][0]["median_s"]
    assert len(sections) == 7 and calls["ms"].iloc[0] == pytest.approx(milliseconds, abs=6e-4)
    toys = GpuMeasurement({**kept, "measured": False}, "gpu.json")
    assert toys.origin.startswith("No figure here comes from a GPU") and "python tests/benchmarks/gpu.py" in toys.origin


def test_a_file_of_another_kind_is_refused(kept, tmp_path):
    path = tmp_path / "gpu.json"
    for content in (None, "{", "[]", "{}", json.dumps({"sections": []})):
        if content is not None:
            path.write_text(content)
        with pytest.raises(UsageError, match=r"gpu\.json was not written by the GPU measurement"):
            read_gpu(path)
    assert read_gpu().found["measured"]
    older = {**kept, "sections": {"oracle": {"status": "done", "complete": True, "rows": [{"gamma": 1}]}}}
    with pytest.raises(UsageError, match="section 'oracle' lacks"):
        GpuMeasurement(older, "gpu.json").sections()
