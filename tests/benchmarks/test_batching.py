"""Measures up to which batch speculation pays on the pocket target, for notebook 09 where there is no run of one's own:
the tables of study `batching`, by processor times of one thread; about fifteen minutes of one quiet core.
"""

import json

import pytest
from fixtures.measuring import timed_study, write_lines

from specdec.analysis.read.find_runs import finished_study
from specdec.analysis.studies import batching as told

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(7200)]

OVERRIDES = ("+experiment=batching", "study.repeats=6", "study.seconds=3600", "measurement.threads=1", "seed=1")


def five_digits(value):
    return float(f"{value:.5g}") if isinstance(value, float) else value


def test_the_pocket_target(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "out"
    _, facts = timed_study(folder, OVERRIDES, monkeypatch)
    parts = ("study", "environment", "batching")
    about, environment, costs = (json.loads((folder / f"{part}.json").read_text(encoding="utf-8")) for part in parts)
    study = finished_study(folder)
    facts |= {"clock": "processor time of one thread", "environment": environment["code"], "cost": costs["cost"]}
    facts["study"] = {name: value for name, value in about.items() if name != "metrics"}
    facts["tables"] = {name: table.map(five_digits).to_dict("list") for name, table in study.tables.items()}
    write_lines(told.RESULT, facts)
    # Lossless, or parted at a near-tie.
    outcomes = study.tables["batching"][["same", "near_tie", "differs"]].sum()
    assert outcomes["differs"] <= 0.02 * outcomes.sum()
