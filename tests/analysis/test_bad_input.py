"""The analysis refuses input that it cannot use in one sentence: files made by hand. Little or odd data, which it can
use, are for `pages/test_impossible.py`.
"""

import sqlite3
from collections.abc import Callable

import pandas as pd
import pytest

from specdec.analysis.figures.run_figures import accepted_length_table
from specdec.analysis.findings.compare import comparison_section
from specdec.analysis.read import mlflow_runs
from specdec.analysis.read.runs import Run
from specdec.errors import UsageError

PLAIN = {"draft_s": 0.0, "verify_s": 0.02, "accept_s": 0.0, "commit_s": 0.0, "round_s": 0.02}


@pytest.fixture
def rounds(make_rounds: Callable[..., pd.DataFrame]) -> pd.DataFrame:
    drafted = make_rounds({prompt: [2, 2, 2] for prompt in "abcde"}, 2)
    plain = make_rounds({prompt: [0] * 12 for prompt in "abcde"}, 0, method="baseline", durations=PLAIN)
    return pd.concat([drafted, plain], ignore_index=True)


def test_gammas_mixed_in_a_cell_are_refused(make_rounds, rounds, stored_run):
    """Two gammas' rounds put together by hand under one: they would pass for twice as many rounds of one law."""
    mixed = pd.concat([rounds, make_rounds({"a": [1, 0]}, 1).assign(gamma=2)])
    with pytest.raises(
        UsageError, match=r"rounds.parquet: round 0 of prompt 'a' stands twice at gamma 2, so rounds of s"
    ):
        stored_run(mixed).rounds()
    two = pd.concat([make_rounds({"a": [2, 1]}, 2), make_rounds({"a": [1, 1]}, 1)])
    with pytest.raises(ValueError, match=r"several gammas, \[1, 2\]: choose one"):
        accepted_length_table(two, 0.5)


def test_tables_that_are_none_are_refused(rounds, stored_run):
    with pytest.raises(UsageError, match=r"rounds.parquet: the rounds table lacks the columns accepted, draft_s"):
        stored_run(rounds.drop(columns=["accepted", "draft_s"])).rounds()
    run = stored_run(None, files={"rounds.parquet": "not a table"})
    with pytest.raises(UsageError, match=r"rounds.parquet is no Parquet table .*; copy it again, or run again"):
        run.rounds()


@pytest.mark.parametrize(
    ("read", "sentence"),
    [
        (Run.rounds, r"no artifact rounds.parquet; every run that decoded at least one prompt writes it"),
        (Run.generations, r"no artifact generations.jsonl; every run that decoded"),
        (Run.account, r"no artifact account.json; every run that finished writes it"),
        (Run.replay, r"no artifact replay.parquet; every run that ended, and"),
        (Run.calibration, r"no artifact calibration.json; every run that began to decode writes it"),
        (Run.cost, r"no artifact cost.json; every run with a value in measurement.cost_contexts"),
        (lambda run: run.fetch("divergences.json"), r"every greedy run with an output that parted"),
        (lambda run: comparison_section([run]), r"no artifact rounds.parquet"),
    ],
)
def test_a_missing_artifact_is_named_with_what_writes_it(stored_run, read, sentence):
    run = stored_run(None)
    with pytest.raises(UsageError, match=sentence) as caught:
        read(run)
    message = str(caught.value)
    assert "run0" in message and "\n" not in message and message.endswith(".")


def test_a_store_of_another_version_is_left_alone(tmp_path):
    database = tmp_path / "mlflow.db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
        connection.execute("INSERT INTO alembic_version VALUES ('0123456789ab')")
        connection.execute("CREATE TABLE experiments (experiment_id INTEGER)")
        connection.execute("CREATE TABLE runs (run_uuid TEXT)")
    connection.close()
    before = database.read_bytes()
    for ask, what in ((mlflow_runs.load_runs, "specdec"), (mlflow_runs.open_run, "0" * 32)):
        with pytest.raises(UsageError, match=r"of another MLflow version \(0123.*: back it up and run `mlflow db"):
            ask(f"sqlite:///{database}", what)
    assert database.read_bytes() == before
