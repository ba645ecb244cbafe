"""Which runs a notebook shows: those that a person chose, the overlay's, or the person's own."""

import pandas as pd
import pytest

from specdec.analysis.pages import notebook


@pytest.fixture
def shown(monkeypatch):
    """`shown(overlays, chosen)`: the runs shown of an experiment whose runs, newest first, came of these overlays."""

    def show(overlays, chosen=()):
        ids = [letter * 32 for letter in "abcd"]
        columns = {
            "status": ["FINISHED"] * 3 + ["FAILED"],
            "params.drafter.name": ["ngram", "oracle", "ngram", "mixed"],
        }
        if overlays:
            columns["params.experiment_name"] = overlays
        monkeypatch.setattr(notebook, "load_runs", lambda uri, experiment: pd.DataFrame(columns, index=ids))
        monkeypatch.setattr(notebook, "open_run", lambda uri, run_id: run_id[0])
        monkeypatch.setattr(notebook, "open_folder", lambda folder: f"folder {folder}")
        return notebook.own_runs("sqlite:///x.db", "specdec", chosen)

    return show


def test_without_the_overlay_the_newest_finished_run_of_each_drafter_is_shown(shown):
    assert shown([None] * 4) == ["b", "a"] == shown(None)


def test_the_overlays_runs_come_before_a_persons_own(shown):
    assert shown([None, "notebooks", "notebooks", "notebooks"]) == ["c", "b"]


def test_run_ids_and_folders_are_shown_in_the_order_given(shown):
    assert shown([None] * 4, ["outputs/x", "d" * 32]) == ["folder outputs/x", "d"]


def test_one_run_of_a_persons_choice(shown, monkeypatch):
    shown(None)
    monkeypatch.setattr(notebook, "latest_run", lambda uri, experiment: "newest")
    assert notebook.own_run("", "specdec") == "newest"
    assert notebook.own_run("", "specdec", ["outputs/x", "outputs/y"]) == "folder outputs/x"
