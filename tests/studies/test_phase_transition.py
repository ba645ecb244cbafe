"""The study end to end: the command leaves tables, report, figures and metrics, from which it can be opened again."""

import pandas as pd
import pytest

from specdec import run
from specdec.analysis.read.find_runs import finished_study

SMALL = ("study.k=[1,3]", "study.w=[0,1,2]", "study.contexts=[8,24]", "study.calls=2")


@pytest.mark.slow
def test_the_command_on_the_pocket_target(in_process, made_database, tmp_path):
    pocket = ("+experiment=phase_transition", "+debug=pocket", "target.dtype=bfloat16", "target.compile=false")
    ended = in_process(run, *pocket, *SMALL)
    assert ended.code == 0, ended.error
    answer = "How much longer a call takes: With 24 tokens in the cache a call costs at most"
    assert answer in ended.output.replace("\n", " ")
    (folder,) = tmp_path.glob("outputs/*/*")
    times, intensity = pd.read_parquet(folder / "block_times.parquet"), pd.read_parquet(folder / "intensity.parquet")
    shapes = {
        way: set(part[["k", "w"]].itertuples(index=False, name=None)) for way, part in times.groupby("evaluation")
    }
    packed = {(1, 0), (1, 1), (1, 2), (3, 1), (3, 2)}
    assert shapes == {"packed": packed, "rows": packed | {(3, 0)}} and times["evaluation"].iloc[0] == "rows"
    assert set(times.groupby(["k", "w", "context", "evaluation"]).size()) == {2} and (times["seconds"] > 0).all()
    assert set(times["context"]) == {8, 24}
    # Every product of every shape; a plain step does two operations for each stored value it reads.
    assert len(intensity) == (5 + 6) * 2 * intensity["product"].nunique()
    weights = intensity[(intensity["inputs"] > 0) & (intensity["outputs"] > 0)]
    step = weights[(weights["k"] == 1) & (weights["w"] == 0)]
    assert (step["flops"] == step["bytes"]).all()  # of 2 bytes each
    assert (weights["flops"] == weights["rows_evaluated"] * weights["bytes"]).all()
    scores = intensity[intensity["product"] == "attention scores"]
    cache = scores.set_index(["evaluation", "context", "k", "w"])["bytes"]
    for way, copies in (("rows", 3), ("packed", 1)):
        assert cache[way, 24, 3, 2] == cache[way, 24, 1, 0] * copies
    assert cache["rows", 24, 3, 0] == cache["rows", 24, 1, 0] * 3
    for name in ("slowdown", "slowdown_by_tokens"):
        assert (folder / "figures" / f"{name}.png").stat().st_size > 0
    assert "phase_transition" in (folder / "report.html").read_text()
    opened = finished_study(folder).findings()
    metrics = opened.metrics
    assert metrics["transition/context"] == 24 and metrics["transition/ridge.roofline"] > 0

    import mlflow

    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    (logged,) = client.search_runs([client.get_experiment_by_name("specdec").experiment_id])
    assert logged.data.tags["specdec.study"] == "phase_transition"
    assert logged.data.metrics["transition/tokens_within_10pct"] == metrics["transition/tokens_within_10pct"]


@pytest.mark.slow
def test_a_target_without_products_has_times_alone(study):
    found, tables = study("phase_transition", *SMALL, "study.evaluations=[packed]")
    assert set(tables["block_times"]["evaluation"]) == {"packed"} and tables["intensity"].empty
    assert "transition/ridge.roofline" not in found.metrics
