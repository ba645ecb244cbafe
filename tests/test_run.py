"""The command end to end on the table target, and what it answers to bad input: one sentence, code 2, no MLflow run."""

import json
import math
import sqlite3
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from fixtures.resumed_runs import config_of, decode
from fixtures.small_parts import composed
from omegaconf import OmegaConf
from oracles.rounds import finite_tokens_per_round

from specdec import run
from specdec.analysis.acceptance import stretches
from specdec.analysis.figures import style
from specdec.analysis.pages.guide import RUN_FILES
from specdec.analysis.read.facts import RunStatus
from specdec.analysis.read.find_runs import load_runs
from specdec.analysis.read.runs import open_folder
from specdec.config import config_dir
from specdec.drafters.none import NoDrafter
from specdec.errors import NumericsError, UsageError
from specdec.plan.plan import plan
from specdec.session.experiment import run_experiment
from specdec.targets.table import Table
from specdec.text import python_sources

GAMMAS = {1, 2, 4}

# Metrics that a greedy run of a learning-free drafter logs beside those of its summary, which have a test of their own
# (`analysis/findings/test_run_metrics.py`).
METRICS = """
speedup speedup.ci_low tokens_per_round.position tokens_per_round.replay alpha.text account/alpha account/drift
lossless/identical lossless/divergences lossless/unexplained memory/peak_mb memory/weights_mb memory/cache_mb
speedup.limit speedup.limit.realised cost/overhead_share prompts/done prompts/left_out
""".split()


@pytest.fixture
def ran(in_process, made_database, tmp_path):
    """`ran("+drafter=ngram", ...)` runs specdec.run to its end; it gives the output folder, `tmp_path` of a sweep."""

    def call(*arguments: str) -> Path:
        ended = in_process(run, *arguments)
        assert ended.code == 0, ended.error
        return max(tmp_path.glob("outputs/*/*"), default=tmp_path)

    return call


def test_a_run_leaves_every_metric_and_artifact(ran, tmp_path, monkeypatch):
    """Oracle at alpha 0.8, so that every statistic is defined; two of the pictures are written, and small."""
    save, asked = style.save, set()

    def save_two(figure, folder, name):
        asked.add(name)
        if name in ("curve_tokens_per_round", "time_split"):
            save(figure, folder, name)

    monkeypatch.setattr(style, "DPI", 20)
    monkeypatch.setattr(style, "save", save_two)
    folder = ran("+drafter=oracle", "+debug=tiny", "seed=3", "measurement.bootstrap=50")
    expected = "rounds.parquet generations.jsonl account.json calibration.json environment.json config.yaml trace.html"
    written = {path.name + "/" * path.is_dir() for path in folder.iterdir() if path.name[0] != "."}
    assert {*expected.split(), "report.md", "summary.json", "mirror.json"} <= written <= set(RUN_FILES)
    assert {"curve_tokens_per_round", "curve_speedup", "accepted_lengths", "time_split"} <= asked
    figures = {path.name for path in (folder / "figures").iterdir()}
    assert figures == {f"{stem}.{form}" for stem in ("curve_tokens_per_round", "time_split") for form in ("png", "svg")}
    assert not list(folder.glob("rounds/part-*"))

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    (logged,) = load_runs(uri, "specdec").to_dict("records")
    assert logged["status"] == "FINISHED"
    missing = [name for name in METRICS if f"metrics.{name}" not in logged and name not in logged]
    assert not missing
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name("specdec").experiment_id])
    children = [item for item in runs if item.data.tags["specdec.role"] == "curve"]
    (main,) = (item for item in runs if item.data.tags["specdec.role"] == "main")

    def points(item, name):
        return {point.step: point.value for point in client.get_metric_history(item.info.run_id, name)}

    primary = int(main.data.params["structure.gamma"])
    told = {name: main.data.tags[name] for name in ("structure", "verifier", "prompts", "temperature")}
    assert told == {"structure": "chain", "verifier": "speculative_sampling", "prompts": "tokens", "temperature": "0"}
    assert main.info.run_name.endswith(f", {main.data.tags['specdec.cell'][:6]}")  # runs that differ have other names
    note = main.data.tags["mlflow.note.content"]
    assert "**Speedup" in note.partition("\n|")[0] and "| speedup" in note  # behind its reason, where times give one
    assert [item.dataset.name for item in main.inputs.dataset_inputs] == ["tokens"]
    logged_point = points(main, "curve/replay")  # of the others `analysis/findings/test_run_metrics.py` says the same
    assert set(logged_point) == GAMMAS
    assert logged_point[primary] == pytest.approx(main.data.metrics["tokens_per_round.replay"])
    lines = {item.data.tags["specdec.line"]: item for item in children}
    assert set(lines) == {"measured", "capped_geometric", "priced", "position", "replay"}
    for item in children:
        assert "speedup" not in item.data.metrics
        timed = item.data.tags["specdec.line"] == "priced"  # a speedup alone
        assert set(points(item, "curve/speedup" if timed else "curve/tokens_per_round")) == GAMMAS
        told = {key: item.data.tags[key] for key in ("drafter", "model", "gamma")}
        assert told == {"drafter": "oracle", "model": "table", "gamma": str(primary)}
        assert ("curve/tokens_per_round.ci_low" in item.data.metrics) == (item.data.tags["specdec.line"] == "measured")
    names = {item.path for item in client.list_artifacts(main.info.run_id)}
    assert {"rounds.parquet", "trace.html", "figures", "report.md", "account.json"} <= names


@pytest.mark.parametrize(
    "name", ["chain", "several", *(pytest.param(each, marks=pytest.mark.slow) for each in ("replay", "batch"))]
)
def test_tables_agree_with_each_other(finished_run, name):
    run_ = open_folder(finished_run(name))
    rounds, generations = run_.rounds(), run_.generations()
    key = ["method", "gamma", "repeat", "prompt"]
    sums = rounds.groupby(key).agg(committed=("committed", "sum"), counted=("round", "size"), decode=("round_s", "sum"))
    joined = generations.set_index(key).join(sums)
    assert (joined["tokens"] == joined["committed"]).all()
    assert (joined["rounds"] == joined["counted"]).all()
    assert joined["decode_s"].to_numpy() == pytest.approx(joined["decode"].to_numpy())
    first = rounds[rounds["round"] == 0].set_index(key)["tokens_left"]
    assert (first.sort_index() == joined["tokens"].sort_index()).all()
    texts = generations.groupby(["prompt", "repeat"])["generated_token_ids"].agg(
        lambda column: len(set(map(tuple, column)))
    )
    assert (texts == 1).all()  # greedy: every method writes the same text
    baseline = rounds[rounds["method"] == "baseline"]
    assert (baseline["committed"] == 1).all() and (baseline["offered"] == 0).all()


@pytest.mark.usefixtures("undrawn_pictures", "quick_analysis")
def test_oracle_replay_is_exact_and_no_test_of_the_model_rejects(tmp_path, monkeypatch):
    """Coins of alpha 0.8 at gamma 5 along 6 prompts of 250 tokens. The replay flips the same coins, so that drift is 1.

    The seed is fixed: five p-values below 0.2% never all pass by a broken coin, and a sound one fails a fixed seed with
    chance 1%; the interval of dependence leaves out 1 for 9% of seeds though acceptance is i.i.d.
    """
    monkeypatch.setattr(stretches, "KINDS", (1,))  # what it predicts is of no concern
    few = ("seed=1", "structure.gamma=5", "measurement.gammas=[]", "measurement.max_new_tokens=250")
    run_experiment(plan(config_of("+drafter=oracle", *few)), tmp_path)
    finished = open_folder(tmp_path)
    account = finished.account()["gammas"]["5"]
    expected = finite_tokens_per_round(0.8, 5, [250] * 6)  # 3.68928, less what the end of a text costs
    assert finished.metrics["tokens_per_round.ci_low"] <= expected <= finished.metrics["tokens_per_round.ci_high"]
    assert finished.metrics["alpha.text"] == pytest.approx(0.8, abs=0.03)
    assert account["factors"]["drift"] == pytest.approx(1.0, abs=1e-12)
    dependence, drift = (account["intervals"][factor] for factor in ("dependence", "drift"))
    assert drift["low"] == pytest.approx(1, abs=1e-9) and drift["high"] == pytest.approx(1, abs=1e-9)
    assert dependence["low"] <= 1 <= dependence["high"]
    assert dependence["high"] - dependence["low"] < 0.15  # narrow enough to mean something
    p_values = [test["p_value"] for test in account["iid"].values() if not math.isnan(test["p_value"])]
    assert len(p_values) == 5 and min(p_values) > 0.01 / 5


def test_nan_logits_end_the_run_as_failed_and_keep_the_rounds(tmp_path, monkeypatch):
    verify, calls = Table.verify, []

    def broken(self, draft):
        calls.append(1)
        if len(calls) > 150:
            raise NumericsError("The target's logits are not finite after position 7: the run stops here.")
        return verify(self, draft)

    monkeypatch.setattr(Table, "verify", broken)
    with pytest.raises(NumericsError, match="position 7") as fault:
        run_experiment(plan(config_of("+drafter=ngram")), tmp_path)
    assert fault.value.exit_code == 4 and RunStatus.read(tmp_path).status == "failed"
    assert len(pd.read_parquet(tmp_path / "rounds.parquet")) > 0


def test_a_drafter_of_another_vocabulary_is_refused(made_database, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other = replace(NoDrafter.capabilities, vocab_size=32000)
    monkeypatch.setattr(NoDrafter, "capabilities", other)
    with pytest.raises(UsageError, match="32000 tokens, the target has 3"):
        run_experiment(plan(config_of("+drafter=none", "tracking.enabled=true")), tmp_path / "run")
    with sqlite3.connect(made_database) as database:
        assert database.execute("select count(*) from runs").fetchone() == (0,)


@pytest.mark.usefixtures("undrawn_pictures", "quick_analysis")
def test_a_run_without_any_proposal_is_reported(tmp_path):
    """Texts of one token, the last, for which nothing is offered."""
    few = ("measurement.max_new_tokens=1", "measurement.gammas=[]", "prompts.limit=2")
    metrics = run_experiment(plan(config_of("+drafter=ngram", *few)), tmp_path).metrics
    assert metrics["tokens_per_round"] == 1 and metrics["proposals.share"] == 0
    assert "alpha.mle" not in metrics and "accepted_per_offered" not in metrics


ELSEWHERE = {  # experiments whose overlay is not decoded as it is on the pocket target
    *("leviathan_ende", "leviathan_cnndm"),  # of encoder-decoder models: below, the second with other words in front
    "gpu_limit",  # needs a GPU
    "grounded_ablation",  # of heads that the user trains first: tests/heads/test_grounded_ablation.py
    "notebooks",  # tests/contracts/test_documented_commands.py, tests/notebooks/
}
EXPERIMENTS = {path.stem: OmegaConf.load(path) for path in Path(config_dir(), "experiment").glob("*.yaml")}
STUDIES = {name for name, overlay in EXPERIMENTS.items() if "/study" in str(overlay.get("defaults"))}
# What these runs do not test: a database, and narrow intervals.
QUICK = ("tracking.enabled=false", "measurement.bootstrap=20")
FEW_CALLS = ("measurement.cost_contexts=[]", "measurement.calibration_calls=1", "measurement.warmup_tokens=0")
# Random weights, of a shape as large as that of a model that people serve.
TOY = ("hidden_size=32", "num_hidden_layers=2", "num_attention_heads=4", "num_key_value_heads=4", "vocab_size=300")
SMALLER = {"oracle_forced": ["prompts.length=24", *(f"target.shape.{size}" for size in TOY)]}


def cells(name: str) -> list[tuple[str, ...]]:
    """Return cells of a sweep in which each choice of the experiment stands, one empty cell where it is no sweep."""
    params = OmegaConf.select(EXPERIMENTS[name], "hydra.sweeper.params") or {}
    choices = [[f"{key}={value}" for value in str(swept).split(",")] for key, swept in params.items()]
    size = max(map(len, choices), default=1)
    return [tuple(values[place % len(values)] for values in choices) for place in range(size)]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EXPERIMENTS.keys() - ELSEWHERE - STUDIES))
def test_every_choice_of_every_experiment_decodes_the_pocket_targets_text(tmp_path, monkeypatch, name):
    """The analysis of a run reads files, and does not know what made them."""
    monkeypatch.chdir(tmp_path)
    read = python_sources.read_python_files  # tables are fitted on every fortieth file: on all it takes too long
    monkeypatch.setattr(python_sources, "read_python_files", lambda *where: list(read(*where))[::40])
    few = ("prompts.limit=1", "measurement.max_new_tokens=6", "measurement.gammas=[]", "measurement.null=false")
    small = ("+debug=pocket", *QUICK, *few, "target.compile=false", *SMALLER.get(name, ()))
    for place, choices in enumerate(cells(name)):
        decode(composed(f"+experiment={name}", *choices, *small, *FEW_CALLS), tmp_path / str(place))
        assert json.loads((tmp_path / str(place) / "session.json").read_text())["unexplained"] == 0
        if OmegaConf.select(EXPERIMENTS[name], "measurement.peers"):
            peers = json.loads((tmp_path / str(place) / "peers.json").read_text())["peers"]
            assert len(peers) == 2 and not any(peer["failure"] for peer in peers)


def test_every_study_has_a_test_that_decodes():
    files = [path for path in Path(__file__).parent.glob("studies/test_*.py") if "refused" not in path.name]
    tested = "".join(path.read_text(encoding="utf-8") for path in files)
    assert not [name for name in STUDIES - ELSEWHERE if f'"{name}"' not in tested]


def test_the_gpu_experiment_says_once_that_there_is_no_gpu(in_process, tmp_path):
    """In one sentence for all of its cells, none of which starts."""
    ended = in_process(run, "+experiment=gpu_limit")
    assert ended.code == 2 and ended.error.count("no CUDA device is available") == 1
    assert not list(tmp_path.rglob("summary.json"))


@pytest.fixture(scope="module")
def t5_models(tmp_path_factory):
    """Overrides that choose a target and a drafter with random weights, float32, and a tokenizer that ends as T5's."""
    import torch
    from tokenizers.processors import TemplateProcessing
    from transformers import T5Config, T5ForConditionalGeneration

    from specdec.training.data.tokenized_corpus import train_tokenizer

    tokenizer = train_tokenizer(["def f(x):\n    return x\n"] * 3, 268, 64)
    end = tokenizer.eos_token_id
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"$A {tokenizer.eos_token}", special_tokens=[(tokenizer.eos_token, end)]
    )
    folders = []
    for seed, width in enumerate((32, 16)):
        torch.manual_seed(seed)
        sizes = dict(vocab_size=280, d_model=width, d_ff=32, d_kv=8, num_heads=2, num_layers=2)
        config = T5Config(**sizes, eos_token_id=end, pad_token_id=end, decoder_start_token_id=end)
        folders.append(tmp_path_factory.mktemp("t5"))
        T5ForConditionalGeneration(config).save_pretrained(folders[-1])
        tokenizer.save_pretrained(folders[-1])
    return f"target.model={folders[0]}", f"drafter.model={folders[1]}"


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn_pictures")
def test_an_experiment_on_t5_takes_any_pair(ran, tmp_path, t5_models):
    """The command as a user gives it for models and prompts of his own, at both temperatures."""
    line = {"translation": {"en": "def translated(text):", "de": ""}}
    (tmp_path / "prompts.jsonl").write_text(json.dumps(line) + "\n")
    prompts = (f"prompts.path={tmp_path}/prompts.jsonl", "prompts.hub_id=null", "measurement.gammas=[3,5,7]")
    ran("+experiment=leviathan_ende", "+debug=pocket", *t5_models, *prompts, *QUICK)
    runs = [open_folder(path.parent) for path in tmp_path.glob("multirun/*/*/*/summary.json")]
    assert sorted(float(run_.params["sampling.temperature"]) for run_ in runs) == [0, 1]
    for run_ in runs:
        assert set(run_.account()["gammas"]) == {"3", "5", "7"}
        assert run_.metrics["proposals.share"] > 0 and 0 < run_.metrics["cost/c_ops"] < 1
        if float(run_.params["sampling.temperature"]) == 0:
            assert run_.metrics["lossless/identical"] == 1 and run_.metrics["lossless/unexplained"] == 0
        else:
            assert 0 < run_.metrics["alpha.text"] < 1  # two laws that forbid nothing overlap somewhere
    environment = json.loads(next(tmp_path.rglob("environment.json")).read_text())
    assert environment["model"]["class"] == "T5ForConditionalGeneration" and environment["prompts"]["count"] == 1


def test_results_do_not_depend_on_prompt_order(tmp_path):
    """One generator per (prompt, purpose): sampling the same prompts in another order gives the same texts."""
    texts = []
    for name, tokens in (("one", "[[0],[1],[2]]"), ("other", "[[2],[0],[1]]")):
        few = ("+drafter=ngram", "sampling=temperature", "measurement.null=false", f"prompts.tokens={tokens}")
        decode(config_of(*few), tmp_path / name)  # a control, null, has every n-th prompt of the order
        lines = map(json.loads, (tmp_path / name / "generations.jsonl").read_text().splitlines())
        texts.append({(line["gamma"], line["prompt"]): tuple(line["generated_token_ids"]) for line in lines})
    assert texts[0] == texts[1] and len(set(texts[0].values())) > 3
