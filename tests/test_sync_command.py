"""`python -m specdec.sync`: which folders it takes, what it says, and its exit codes."""

import pytest

from specdec import run, sync
from specdec.tracking import store


@pytest.mark.slow
def test_a_run_without_its_server_ends_well_and_is_uploaded_later(in_process, made_database, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # a server that is away is given up at once
    monkeypatch.setattr(store, "_silent", {})
    few = ("measurement.max_new_tokens=8", "prompts.limit=2", "tracking.uri=http://127.0.0.1:9")
    ended = in_process(run, "+drafter=ngram", "+debug=tiny", *few)
    assert ended.code == 0, ended.error
    (folder,) = (tmp_path / "outputs").glob("*/*")
    assert (folder / "report.md").is_file() and "browse:" not in ended.output
    (warning,) = [line for line in ended.error.splitlines() if "Tracking is off" in line]
    assert "does not answer" in warning and f"python -m specdec.sync {folder}" in warning

    down = in_process(sync)
    assert down.code == 4 and down.error.startswith("specdec: The tracking server http://127.0.0.1:9 does not answer")
    done = in_process(sync, "--tracking-uri", f"sqlite:///{made_database}")
    assert done.code == 0 and f"{folder.relative_to(tmp_path)}: uploaded to sqlite:///{made_database}" in done.output
    again = in_process(sync, "--tracking-uri", f"sqlite:///{made_database}")
    assert (again.code, again.output) == (0, "1 of 1 runs were complete already.\n")


def test_without_folders_there_may_be_nothing_to_do(in_process):
    assert in_process(sync) == (0, "0 of 0 runs were complete already.\n", "")
