"""A run whose outputs are not the target's own says so first, and ends with code 6; its folder is complete."""

import json
import re

import pytest
from fixtures.resumed_runs import config_of, decode

from specdec import run
from specdec.analysis.read.find_runs import load_runs
from specdec.errors import NotLossless, UsageError
from specdec.folder.earlier_runs import KeptRun
from specdec.plan.plan import plan
from specdec.session import session
from specdec.session.experiment import run_experiment
from specdec.session.rescoring import Divergence
from specdec.targets.table import Table

LAW = "target.law=[[0.4,0.35,0.25],[0.1,0.3,0.6],[0.55,0.2,0.25]]"
SHORT = ("measurement.gammas=[]", "measurement.max_new_tokens=12", "measurement.bootstrap=20", "prompts.limit=3")


@pytest.mark.usefixtures("undrawn_pictures", "quick_analysis", "made_database")
def test_unexplained_divergences_are_the_headline_and_the_exit_code(monkeypatch, capsys, tmp_path):
    """Every output parts from the baseline's at its first token, by more than rounding."""

    def parted(target, label, prompt, baseline, output):
        return Divergence(*label, 0, 1, 2, margin=1.0, rounding=0.0, explained=False)

    monkeypatch.setattr(session, "explain", parted)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    found = run_experiment(plan(config_of("+drafter=oracle", *SHORT, LAW, "tracking.enabled=true")), folder)
    with pytest.raises(NotLossless, match=r"Outputs refuted: (\d+) of \1 differ") as refusal:
        run.metrics_of(found)
    assert refusal.value.exit_code == 6
    output = capsys.readouterr().out
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["notes"][0] == summary["refuted"] and "no lossless decoding" in summary["refuted"]
    assert not any(note.startswith("Lossless") for note in summary["notes"])
    assert json.loads((folder / "status.json").read_text())["status"] == "finished"
    report = (folder / "report.md").read_text()
    assert "No recommendation: outputs are refuted" in report
    assert re.findall(r".*speculation (?:pays|does).*", report + output, re.IGNORECASE) == []
    assert " best" not in output.partition("95%")[0]
    assert report.index("**Outputs refuted: ") < report.index("**Speedup") and "It is no lossless speedup." in report
    (logged,) = load_runs(f"sqlite:///{tmp_path}/mlflow.db", "specdec").to_dict("records")
    assert logged["status"] == "FINISHED" and logged["tags.specdec.outputs"] == "refuted"
    assert "Outputs refuted" in logged["tags.mlflow.note.content"]


@pytest.mark.usefixtures("undrawn_pictures", "quick_analysis")
def test_calls_that_disagree_at_the_end_refute_the_outputs_too(tmp_path, monkeypatch):
    """Lengths of the configuration that take long are crossed after the last prompt."""
    asked = []

    def disagreement(target, longest, seconds=None, batched=False):
        asked.append(seconds)
        return None if seconds else "The model cannot be trusted with texts of more than 12 tokens."

    monkeypatch.setattr(Table, "disagreement", disagreement)
    findings = run_experiment(plan(config_of("+drafter=oracle", *SHORT)), tmp_path)
    assert asked == [10.0, None]
    assert findings.refuted.startswith("Outputs refuted: The model cannot be trusted")
    assert not any(note.startswith("Lossless") for note in findings.notes)


def test_calls_that_disagree_at_the_beginning_end_the_run_before_anything_is_timed(tmp_path, monkeypatch):
    monkeypatch.setattr(Table, "disagreement", lambda target, *asked: "The model is wrong there.")
    with pytest.raises(UsageError, match="The model is wrong there. Use shorter texts"):
        decode(config_of("+drafter=oracle"), tmp_path)
    assert not (tmp_path / "calibration.json").exists()


def test_a_finished_run_that_is_kept_is_still_refuted(tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps({"refuted": "Outputs refuted: all."}))
    with pytest.raises(NotLossless, match="Outputs refuted: all"):
        run.metrics_of(KeptRun({"speedup": 2.0}, tmp_path))
    (tmp_path / "summary.json").write_text("{}")
    assert run.metrics_of(KeptRun({"speedup": 2.0}, tmp_path)) == {"speedup": 2.0}
