"""Measures up to which batch speculation pays on the pocket target: `analysis/results/batching.json`, the tables of
study `batching` that notebook 09 shows where there is no run of one's own.

Run by hand: `python -m pytest -n 0 -m benchmark tests/benchmarks/test_batching.py`; about fifteen minutes of one quiet
core. Times are processor times of one thread, so that other work on the machine lengthens no call; the file says its
load.
"""

import json
import os
import time

import pytest
from fixtures.measured_commands import ProcessorClock, rounded
from fixtures.resumed_runs import composed

from specdec.analysis.findings import described_study
from specdec.analysis.studies import batching as told
from specdec.experiment.environment import cpu, versions
from specdec.studies.base import run_study as runner

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(7200)]

OVERRIDES = ("+experiment=batching", "study.repeats=6", "study.seconds=3600", "measurement.threads=1", "seed=1")


def test_the_pocket_target(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "clock_for", lambda device: ProcessorClock())
    monkeypatch.chdir(tmp_path)
    folder, before = tmp_path / "out", os.getloadavg()
    folder.mkdir()
    runner.run_study(composed(*OVERRIDES, "tracking.enabled=false"), folder)
    about = json.loads((folder / "study.json").read_text(encoding="utf-8"))
    study = described_study(about, folder.glob("*.parquet"), str(folder))
    facts = {
        "date": time.strftime("%Y-%m-%d"),
        "command": f"python -m specdec.run {' '.join(OVERRIDES)}",
        "clock": "processor time of one thread",
        "load_average": {"start": rounded(before), "end": rounded(os.getloadavg())},
        "cpu": cpu(),
        "versions": versions(),
        "environment": json.loads((folder / "environment.json").read_text(encoding="utf-8"))["code"],
        "study": {name: value for name, value in about.items() if name != "metrics"},
        "cost": json.loads((folder / "batching.json").read_text(encoding="utf-8"))["cost"],
    }
    told.write_committed(study.tables, facts)
    # Lossless, or parted at a near-tie.
    outcomes = study.tables["batching"][["same", "near_tie", "differs"]].sum()
    assert outcomes["differs"] <= 0.02 * outcomes.sum()
