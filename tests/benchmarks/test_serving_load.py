"""Simulates servers under load for notebook 09 where there is no run of one's own: the pocket target by the default
command, the same with the steps that study `batching` measured, and a published cost model; three minutes of one core,
by processor times of one thread.
"""

import json
from pathlib import Path

import pytest
from fixtures.measuring import timed_study

from specdec.analysis.studies import batching, serving

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(3600)]

POCKET = "measurement.threads=1"
LAW = "study.law={alpha: 0.4, prompt_tokens: 300, output_tokens: 200}"
RUNS = {
    "the pocket target, its calls timed": (POCKET,),
    "the pocket target, with the steps of study batching": (
        *(POCKET, "study.batching=batching", "study.slots=32", "target.dtype=float32"),
        *("measurement.max_new_tokens=32", "prompts.limit=64"),
    ),
    "LLaMA-3.1-8B on an H100, published costs, alpha 0.4": (
        *("drafter=none", LAW, "study.cost=h100_llama31_8b", "study.slots=512", "study.gammas=[1,3]"),
        *("study.requests=1500", "study.warmup=1000", "study.replications=4"),
        "study.loads=[0.1,0.3,0.5,0.7,0.85,0.95]",
    ),
}


def batching_folder(folder: Path) -> None:
    """Write the committed results of study `batching` as its output folder."""
    kept = json.loads(batching.RESULT.read_text(encoding="utf-8"))
    folder.mkdir()
    (folder / "config.yaml").write_text("{}", encoding="utf-8")
    for name, table in batching.committed_study().tables.items():
        table.to_parquet(folder / f"{name}.parquet", index=False)
    (folder / "batching.json").write_text(json.dumps({"cost": kept["cost"]}), encoding="utf-8")


@pytest.mark.parametrize("setting", RUNS)
def test_a_server(setting, tmp_path, monkeypatch):
    overrides = ("+experiment=serving", *RUNS[setting])
    if "study.batching=batching" in overrides and not batching.RESULT.is_file():
        pytest.skip("study batching has no committed result")
    monkeypatch.chdir(tmp_path)
    if "study.batching=batching" in overrides:
        batching_folder(tmp_path / "batching")
    folder = tmp_path / "out"
    found, facts = timed_study(folder, overrides, monkeypatch)
    environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    facts |= {
        "clock": "measured times are processor times of one thread; all others are simulated",
        "load_average": [values[0] for values in facts["load_average"].values()],
        "cpu": facts["cpu"]["model"],
        "code": environment["code"],
    }
    serving.write_committed(setting, found, facts, list(RUNS))
    assert found.metrics["serving/simulated.little_error"] < 1e-9
