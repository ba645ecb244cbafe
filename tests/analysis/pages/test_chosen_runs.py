"""Which runs a notebook shows: those that a person chose, the overlay's, or the person's own."""

import pandas as pd
import pytest

from specdec.analysis.pages import notebook
from specdec.analysis.read import find_runs
from specdec.analysis.research import alpha_table
from specdec.analysis.sections import Findings, FinishedStudy, Section
from specdec.errors import UsageError


@pytest.fixture
def shown(monkeypatch):
    """`shown(overlays, chosen)`: the runs shown of an experiment whose runs, newest first, came of these overlays."""

    def show(overlays, chosen=(), finished=3):
        ids = [letter * 32 for letter in "abcd"]
        columns = {
            "status": ["FINISHED"] * finished + ["FAILED"] * (4 - finished),
            "params.drafter.name": ["ngram", "oracle", "ngram", "mixed"],
        }
        if overlays:
            columns["params.experiment_name"] = overlays
        monkeypatch.setattr(notebook, "load_runs", lambda uri, experiment: pd.DataFrame(columns, index=ids))
        monkeypatch.setattr(notebook, "open_run", lambda uri, run_id: run_id[0])
        monkeypatch.setattr(find_runs, "open_run", lambda uri, run_id: run_id[0])
        monkeypatch.setattr(find_runs, "open_folder", lambda folder: f"folder {folder}")
        return notebook.own_runs("sqlite:///x.db", "specdec", chosen)

    return show


def test_chosen_runs_come_first_then_the_overlays_then_the_newest_of_each_drafter(shown):
    assert shown([None] * 4) == ["b", "a"] == shown(None)
    assert shown([None, "notebooks", "notebooks", "notebooks"]) == ["c", "b"]
    assert shown([None] * 4, ["outputs/x", "d" * 32]) == ["folder outputs/x", "d"]
    shown([None] * 4)
    assert alpha_table.alpha_runs("", "specdec", ["outputs/x", "d" * 32]) == ["folder outputs/x", "d"]
    shown(None)
    assert notebook.own_run("", "specdec") == "a"
    assert notebook.own_run("", "specdec", ["outputs/x", "outputs/y"]) == "folder outputs/x"
    with pytest.raises(UsageError, match=r"\+experiment=notebooks"):
        shown(["notebooks"] * 4, finished=0)


def test_a_chosen_study_comes_before_the_newest(monkeypatch, tmp_path):
    """A notebook shows that of several chosen studies which is of its kind; others are left to their own parts."""
    newest = Findings(sections=(Section("newest", ("The newest.",)),))
    folders = {name: tmp_path / name for name in ("grid", "batching")}
    for folder in folders.values():
        folder.mkdir()
        (folder / "study.json").write_text("{}", encoding="utf-8")
    kinds = {f"run {'e' * 32}": "equal_budget", **{str(folder): name for name, folder in folders.items()}}
    monkeypatch.setattr(find_runs, "study_ids", lambda uri, name: [name] if name[0] == "e" else [])
    monkeypatch.setattr(find_runs, "read_study", lambda files, source: FinishedStudy(kinds[source], {}, None, ""))
    monkeypatch.setattr(find_runs, "logged_study", lambda uri, run_id: find_runs.read_study({}, f"run {run_id}"))
    monkeypatch.setattr(notebook, "latest_study", lambda uri, experiment, name: newest)
    monkeypatch.setattr(FinishedStudy, "findings", lambda self: Findings(sections=(Section(self.kind, ("words",)),)))
    chosen = [str(folders["grid"]), "e" * 32, str(folders["batching"]), "f" * 32]
    for name in ("grid", "equal_budget", "batching"):
        assert notebook.study("", "specdec", name, chosen)[0].title == name
    for name in ("phase_transition", "serving"):
        assert notebook.study("", "specdec", name, chosen)[0].title == "newest"
    (said,) = notebook.live("chain_rows_tree", "sqlite:///none.db", "specdec", [str(tmp_path)])
    assert "no run's output folder" in said.text[0]
    monkeypatch.setattr(notebook, "open_runs", lambda uri, runs: runs)
    monkeypatch.setitem(notebook.LIVE, "chain_rows_tree", ("", lambda runs: (Section(runs, ()),)))
    assert notebook.live("chain_rows_tree", "", "specdec", chosen)[0].title == ["f" * 32]
