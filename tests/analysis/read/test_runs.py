"""Reading runs back, from an MLflow store and an output folder; what is said when something is missing."""

import json
import shutil
import sqlite3
from dataclasses import replace
from math import isnan
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml
from fixtures.rounds_tables import build_rounds

from specdec.analysis.findings.compare import comparison_section
from specdec.analysis.pages.notebook import own_run
from specdec.analysis.papers.paper_tables import COLUMNS, leviathan_table_1, load_published, table_1_in_words
from specdec.analysis.read import find_runs
from specdec.analysis.read.runs import Run, current_name, open_folder
from specdec.analysis.rounds import GENERATION
from specdec.errors import UsageError

CURVES = {
    "curve/measured": {1: 1.5, 4: 2.5},
    "curve/capped_geometric": {1: 1.6, 4: 2.6},
    "curve/speedup/measured": {1: 1.1, 4: 1.3},
    "curve/speedup/replay": {1: 1.2},
}
ROUNDS = build_rounds({"a": [4, 1], "b": [1]}, 4)


def write_folder(folder: Path) -> Path:
    folder.mkdir()
    ROUNDS.to_parquet(folder / "rounds.parquet", index=False)
    (folder / "generations.jsonl").write_text('{"prompt": "a", "tokens": 7}\n{"prompt": "b", "tokens": 2}\n')
    config = {"drafter": {"name": "ngram"}, "structure": {"gamma": 4}, "target": {"model": "pocket"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    curves = {key: {str(gamma): value for gamma, value in points.items()} for key, points in CURVES.items()}
    values = {
        "account.json": {"alpha": 0.6},
        "calibration.json": {"t1_s": 0.002},
        "environment.json": {"cpu": {"model": "EPYC"}, "model": {"dtype": "bfloat16"}},
        "summary.json": {"metrics": {"speedup": 1.3, "alpha.mle": None}, "curves": curves},
    }
    for name, value in values.items():
        (folder / name).write_text(json.dumps(value))
    return folder


@pytest.fixture(scope="module")
def store(tmp_path_factory, empty_database):
    """A store made with MLflow itself: `main` finished with everything, `bare` is newer, failed and left nothing."""
    from mlflow.tracking import MlflowClient

    folder = tmp_path_factory.mktemp("store")
    uri = f"sqlite:///{shutil.copy(empty_database, folder)}"
    client = MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("specdec", (folder / "artifacts").as_uri())
    client.create_experiment("empty", (folder / "artifacts").as_uri())
    client.delete_experiment(client.create_experiment("gone", (folder / "artifacts").as_uri()))

    def run(name, role, start, **params):
        made = client.create_run(experiment, start, tags={"specdec.role": role}, run_name=name).info.run_id
        for key, value in params.items():
            client.log_param(made, key.replace("_", "."), value)
        return made

    main = run("ngram gamma 4", "main", 1000, drafter_name="ngram", structure_gamma=4, target_model="pocket")
    client.log_metric(main, "speedup", 1.3)
    for key, points in CURVES.items():
        for gamma, value in points.items():
            client.log_metric(main, key, value - 1, step=gamma, timestamp=1)  # a resumed run logs twice
            client.log_metric(main, key, value, step=gamma, timestamp=2)
    client.log_artifacts(main, str(write_folder(folder / "run")))
    client.set_terminated(main)
    bare = run("oracle gamma 4", "main", 2000, drafter_name="oracle")
    client.set_terminated(bare, "FAILED")
    client.set_terminated(run("measured", "curve", 3000))
    return SimpleNamespace(uri=uri, main=main, bare=bare)


def test_main_runs_come_newest_first_with_params_and_metrics(store):
    table = find_runs.load_runs(store.uri, "specdec")
    assert table.index.tolist() == [store.bare, store.main]  # the curve's run is none
    row = table.loc[store.main]
    assert (row["params.drafter.name"], row["metrics.speedup"], row["status"]) == ("ngram", 1.3, "FINISHED")
    run = own_run(store.uri, "specdec")
    assert run.name == "ngram gamma 4" and store.main in run.source


@pytest.fixture(params=["store", "folder"])
def run(request, store, tmp_path):
    if request.param == "folder":
        return open_folder(write_folder(tmp_path / "run"))
    return find_runs.open_run(store.uri, store.main)


def test_a_run_has_curves_metrics_and_tables_wherever_it_was_read(run):
    assert run.curves == CURVES
    assert run.lines() == {"capped_geometric": CURVES["curve/capped_geometric"]}
    assert run.lines("speedup") == {"replay": {1: 1.2}}
    assert run.metrics["speedup"] == 1.3
    assert not any(key.startswith("curve/") for key in run.metrics)
    assert run.params["structure.gamma"] == "4"
    assert run.primary_gamma == 4
    assert run.title == "ngram on pocket (bfloat16), EPYC"
    for model, name in (("None", "model_bigram"), ("pocket", "model_bigram pocket")):
        assert replace(run, params={"drafter.name": "model_bigram", "drafter.model": model}).drafter_name == name
    heads = {"drafter.name": "grounded", "drafter.model": "pocket", "target.model": "smollm2"}
    assert replace(run, params=heads).drafter_name == "grounded", "those that come along for another model"
    pd.testing.assert_frame_equal(run.rounds().drop(columns="beta"), ROUNDS.drop(columns="beta"))
    counts = pd.concat(run.arms().values(), ignore_index=True).sort_values(GENERATION, ignore_index=True)
    shared = [name for name in counts if counts[name].dtype != "category"]
    same = {"check_dtype": False, "check_column_type": False}
    in_file = ROUNDS.sort_values(GENERATION, kind="stable", ignore_index=True)
    pd.testing.assert_frame_equal(counts[shared], in_file[shared], **same)
    assert counts["prompt"].tolist() == in_file["prompt"].tolist()
    assert run.generations()["tokens"].tolist() == [7, 2]
    kept = [name for name in run.generations() if name not in ("prompt_token_ids", "generated_token_ids", "text")]
    assert list(run.generations(texts=False)) == kept
    assert run.account() == {"alpha": 0.6}
    assert run.calibration() == {"t1_s": 0.002}
    assert run.environment()["cpu"]["model"] == "EPYC"
    with pytest.raises(ValueError, match="quantity must be one of"):
        run.lines("speed")


def test_a_run_that_left_nothing_says_what_is_missing(store):
    run = find_runs.open_run(store.uri, store.bare)
    with pytest.raises(UsageError, match=rf"Run {store.bare} in sqlite.* has no artifact rounds.parquet"):
        run.rounds()
    assert run.title == "oracle on unknown model, hardware not recorded"
    assert run.primary_gamma is None


@pytest.mark.parametrize(
    ("experiment", "sentence"),
    [
        ("specdek", r"No experiment 'specdek' .* Did you mean specdec\? It has: .*empty.*tracking.experiment=specdek"),
        ("empty", r"has no main run: `python -m specdec.run \+drafter=ngram tracking.experiment=empty` makes one"),
        ("gone", r"was deleted: restore it with `mlflow experiments restore"),
    ],
)
def test_experiments_without_runs_are_explained(store, experiment, sentence):
    with pytest.raises(UsageError, match=sentence):
        find_runs.load_runs(store.uri, experiment)


def test_stores_that_are_none_are_explained_and_not_made(tmp_path, store):
    absent = tmp_path / "absent.db"
    with pytest.raises(UsageError, match=r"no MLflow database .*absent.db: `python -m specdec.run"):
        find_runs.load_runs(f"sqlite:///{absent}", "specdec")
    assert not absent.exists()
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    with pytest.raises(UsageError, match="not an MLflow database"):
        find_runs.load_runs(f"sqlite:///{other}", "specdec")
    with pytest.raises(UsageError, match="did not answer"):
        find_runs.open_run(store.uri, "0" * 32)


def test_an_interrupted_folder_still_gives_its_rounds(tmp_path):
    folder = write_folder(tmp_path / "run")
    (folder / "summary.json").unlink()
    (folder / "rounds").mkdir()
    (folder / "rounds.parquet").rename(folder / "rounds" / "part-00000.parquet")
    ROUNDS.replace({"prompt": {"a": "c", "b": "d"}}).to_parquet(folder / "rounds" / "part-00001.parquet", index=False)
    run = open_folder(folder)
    assert run.status == "UNFINISHED"
    assert run.rounds()["prompt"].tolist() == ["a", "a", "b", "c", "c", "d"]
    assert run.curves == {}


def test_damaged_and_foreign_folders_are_explained(tmp_path):
    with pytest.raises(UsageError, match=r"no run's output folder"):
        open_folder(tmp_path)
    folder = write_folder(tmp_path / "run")
    with (folder / "generations.jsonl").open("a") as stream:
        stream.write('{"prompt": ')
    with pytest.raises(UsageError, match=r"generations.jsonl:3: not JSON"):
        open_folder(folder).generations()
    (folder / "account.json").write_text("[1]")
    with pytest.raises(UsageError, match=r"account.json:1: an object was expected"):
        open_folder(folder).account()
    assert isnan(open_folder(folder).metrics["alpha.mle"])


def test_files_of_published_figures_that_cannot_be_used(tmp_path):
    path = tmp_path / "printed.csv"
    with pytest.raises(UsageError, match="does not exist"):
        load_published(path)
    for content, says in (("source,table\nx,y\n", "lacks the columns model_target"), ("", "cannot be read")):
        path.write_text(content)
        with pytest.raises(UsageError, match=says):
            load_published(path)
    path.write_text(",".join(COLUMNS) + "\n" + ",".join(["x"] * len(COLUMNS)) + "\n")
    table = leviathan_table_1(load_published(path))
    assert table_1_in_words(table) == "The file of published figures has no row of Leviathan's Table 1."


@pytest.mark.parametrize(
    ("older", "today"),
    [
        ("account.verify", "account/verify"),
        ("curve.speedup.measured.ci_low", "curve/speedup/measured.ci_low"),
        ("curve.topk.model_bigram.w1", "curve/topk/model_bigram.w1"),
        ("category.http.cookies.alpha.mle.ci_low", "category/http.cookies/alpha.mle.ci_low"),
        ("category.code.throughput.tokens_per_s", "category/code/throughput/tokens_per_s"),
        ("drafter.medusa.lossless.identical", "drafter/medusa/lossless/identical"),
        ("drafter.medusa.speedup.ratio.ci_low", "drafter/medusa/speedup.ratio.ci_low"),
        ("sweep.speedup.ngram", "sweep/speedup/ngram"),
        ("heldout.head_1.top1", "heldout/head_1.top1"),
        *((name, name) for name in ("speedup", "speedup.limit.realised", "tokens_per_round.position")),  # headlines
    ],
)
def test_a_name_with_dots_becomes_todays_and_todays_stays(older, today):
    assert current_name(older) == current_name(today) == today


def test_a_folder_of_an_older_version_is_read_with_todays_names(tmp_path):
    (tmp_path / "config.yaml").write_text("drafter: {name: ngram}\n", encoding="utf-8")
    summary = {"metrics": {"account.alpha": 0.5, "speedup": 1.1}, "curves": {"curve.replay": {"4": 2.0}}}
    (tmp_path / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    run = open_folder(tmp_path)
    assert run.metrics == {"account/alpha": 0.5, "speedup": 1.1} and run.lines() == {"replay": {4: 2.0}}


def test_gammas_mixed_in_a_cell_are_refused(make_rounds, stored_run):
    """Two gammas' rounds put together by hand under one: they would pass for twice as many rounds of one law."""
    mixed = pd.concat([make_rounds({"a": [2, 2]}, 2), make_rounds({"a": [1, 0]}, 1).assign(gamma=2)])
    with pytest.raises(UsageError, match=r"rounds.parquet: round 0 of prompt 'a' stands twice at gamma 2, so rounds"):
        stored_run(mixed).rounds()


def test_tables_that_are_none_are_refused(stored_run):
    with pytest.raises(UsageError, match=r"rounds.parquet: the rounds table lacks the columns accepted, draft_s"):
        stored_run(ROUNDS.drop(columns=["accepted", "draft_s"])).rounds()
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


def test_a_store_of_another_version_is_left_alone(tmp_path, empty_database):
    database = Path(shutil.copy(empty_database, tmp_path))
    with sqlite3.connect(database) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0123456789ab'")
    connection.close()

    before = database.read_bytes()
    for ask, what in ((find_runs.load_runs, "specdec"), (find_runs.open_run, "0" * 32)):
        with pytest.raises(UsageError, match=r"of another MLflow version \(0123.*: back it up and run `mlflow db"):
            ask(f"sqlite:///{database}", what)
    assert database.read_bytes() == before
