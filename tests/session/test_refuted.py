"""A run whose outputs are not the target's own says so first, and ends with code 6; its folder is complete."""

import json
import re

import pytest

from specdec import run
from specdec.analysis.read.mlflow_runs import load_runs
from specdec.session import session
from specdec.session.divergence import Divergence
from specdec.targets.table import Table

TINY = ("+drafter=oracle", "+debug=tiny", "target.law=[[0.4,0.35,0.25],[0.1,0.3,0.6],[0.55,0.2,0.25]]")


@pytest.fixture
def parting(monkeypatch):
    """Let every output part from the baseline's at its first token, by more than rounding."""

    def parted(target, label, prompt, baseline, output):
        return Divergence(*label, 0, 1, 2, margin=1.0, rounding=0.0, explained=False)

    monkeypatch.setattr(session, "explain", parted)


def test_unexplained_divergences_are_the_headline_and_the_exit_code(parting, in_process, made_database, tmp_path):
    ended = in_process(run, *TINY)
    assert ended.code == 6 and re.search(r"Outputs refuted: (\d+) of \1 differ", ended.error)
    (folder,) = tmp_path.glob("outputs/*/*")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["notes"][0] == summary["refuted"] and "no lossless decoding" in summary["refuted"]
    assert not any(note.startswith("Lossless") for note in summary["notes"])
    assert json.loads((folder / "status.json").read_text())["status"] == "finished"
    report = (folder / "report.md").read_text()
    assert "No recommendation: outputs are refuted" in report
    assert re.findall(r".*speculation (?:pays|does).*", report + ended.output, re.IGNORECASE) == []
    assert " best" not in ended.output.partition("95%")[0]
    assert report.index("**Outputs refuted: ") < report.index("**Speedup") and "It is no lossless speedup." in report
    (logged,) = load_runs(f"sqlite:///{tmp_path}/mlflow.db", "specdec").to_dict("records")
    assert logged["status"] == "FINISHED" and logged["tags.specdec.outputs"] == "refuted"
    assert "Outputs refuted" in logged["tags.mlflow.note.content"]


@pytest.mark.slow
def test_calls_that_disagree_at_the_end_refute_the_outputs_too(in_process, made_database, tmp_path, monkeypatch):
    """Lengths of the configuration that take long are crossed after the last prompt."""
    asked = []

    def disagreement(target, longest, seconds=None, batched=False):
        asked.append(seconds)
        return None if seconds else "The model cannot be trusted with texts of more than 12 tokens."

    monkeypatch.setattr(Table, "disagreement", disagreement)
    ended = in_process(run, *TINY)
    assert ended.code == 6 and "Outputs refuted: The model cannot be trusted" in ended.error
    (folder,) = tmp_path.glob("outputs/*/*")
    assert asked == [10.0, None] and "more than 12 tokens" in json.loads((folder / "session.json").read_text())["doubt"]
    assert not any(note.startswith("Lossless") for note in json.loads((folder / "summary.json").read_text())["notes"])


def test_calls_that_disagree_at_the_beginning_end_the_run_before_anything_is_timed(
    in_process, made_database, tmp_path, monkeypatch
):
    monkeypatch.setattr(Table, "disagreement", lambda target, *asked: "The model is wrong there.")
    ended = in_process(run, *TINY)
    assert ended.code == 2 and "The model is wrong there. Use shorter texts" in ended.error
    assert not list(tmp_path.glob("outputs/*/*/calibration.json"))


@pytest.mark.slow
def test_a_sweep_counts_such_a_cell_as_failed(parting, in_process, made_database, tmp_path):
    ended = in_process(run, "-m", *TINY, "structure.gamma=2")
    assert ended.code == 3
    (table,) = tmp_path.glob("multirun/**/sweep.csv")
    assert "Outputs refuted" in table.read_text()


def test_a_finished_run_that_is_kept_is_still_refuted(tmp_path):
    from specdec.errors import NotLossless
    from specdec.folder.earlier_runs import KeptRun

    (tmp_path / "summary.json").write_text(json.dumps({"refuted": "Outputs refuted: all."}))
    with pytest.raises(NotLossless, match="Outputs refuted: all"):
        run.metrics_of(KeptRun({"speedup": 2.0}, tmp_path))
    (tmp_path / "summary.json").write_text("{}")
    assert run.metrics_of(KeptRun({"speedup": 2.0}, tmp_path)) == {"speedup": 2.0}
