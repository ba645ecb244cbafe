"""A folder that an earlier version of specdec left is read, reported and uploaded as it was then."""

import json
import shutil
from pathlib import Path

import pytest

from specdec.analysis.pages.run_page import write_run
from specdec.analysis.read.runs import open_folder
from specdec.tracking.store import locate, opened
from specdec.tracking.upload import run_folders, upload

EARLIER = Path(__file__).resolve().parents[1] / "fixtures" / "earlier_run"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(EARLIER, tmp_path / "run"))


@pytest.mark.usefixtures("undrawn_pictures", "quick_analysis")
def test_its_numbers_are_found_again(folder):
    """All but the ends of intervals, made on another scale then, and the model that was fitted to other halves."""
    before, now = json.loads((folder / "summary.json").read_text())["metrics"], write_run(folder).metrics
    assert set(now) == set(before)
    estimates = [name for name in before if ".ci_" not in name and name != "tokens_per_round.position"]
    assert [now[name] for name in estimates] == pytest.approx([before[name] for name in estimates], nan_ok=True)
    run = open_folder(folder)
    assert run.status == "FINISHED" and run.facts().drafter == "ngram"


def test_it_is_uploaded_from_its_journal(folder, made_database, tmp_path):
    address = f"sqlite:///{made_database}"
    assert [each.done for each in upload(run_folders([folder]), address)] == ["uploaded"]
    client, experiment = opened(locate(address, tmp_path), "specdec")
    (found,) = client.search_runs([experiment], "tags.`specdec.role` = 'main'")
    entries = [json.loads(line) for line in (folder / "tracking.jsonl").read_text().splitlines()]
    assert (found.info.start_time, found.info.end_time) == (entries[0]["time"], entries[-1]["time"])
    assert found.info.status == "FINISHED" and found.data.params == entries[0]["begin"]["params"]
    assert found.data.metrics["speedup"] == json.loads((folder / "summary.json").read_text())["metrics"]["speedup"]
    assert found.data.tags["mlflow.note.content"] == next(
        entry["tags"]["mlflow.note.content"] for entry in entries if "mlflow.note.content" in entry.get("tags", {})
    )
    lines = {run.data.tags["specdec.line"] for run in client.search_runs([experiment], "tags.`specdec.role` = 'curve'")}
    assert lines == {entry["line"] for entry in entries if "line" in entry}
    assert "rounds.parquet" in {file.path for file in client.list_artifacts(found.info.run_id)}
    assert [each.done for each in upload(run_folders([folder]), address)] == ["complete"]
