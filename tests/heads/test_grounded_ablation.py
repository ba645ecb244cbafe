"""The ablations: a recipe for every file that the overlay sweeps, and the sweep itself on heads of no training."""

import csv
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from specdec import run
from specdec.analysis.read.runs import open_folder
from specdec.config import config_dir
from specdec.published.network_files import TRAINED_HEADS
from specdec.targets.base import targets

CONF = Path(config_dir())
MADE = ("grounded", "gru")  # of the variants, in a test of the sweep


def swept() -> list[str]:
    overlay = OmegaConf.load(CONF / "experiment" / "grounded_ablation.yaml")
    return [path.strip() for path in overlay.hydra.sweeper.params["drafter.model"].split(",")]


def test_the_sweep_has_every_grounded_recipe_where_it_leaves_its_heads():
    recipes = {path.stem for path in (CONF / "heads" / "ablation").glob("*.yaml")}
    assert len(swept()) == len(set(swept()))
    assert set(swept()) == {f"models/heads/ablation/{name}/heads.safetensors" for name in recipes - {"medusa"}}


@pytest.mark.slow
def test_the_sweep_compares_heads_on_one_tree_and_the_same_prompts(
    in_process, made_database, undrawn_pictures, tmp_path, random_heads, sampling, group_values
):
    values = group_values("target", "causal", compile=False, device="cpu")
    target = targets.build(values, sampling=sampling(temperature=0.0))
    for name in MADE:
        heads = random_heads(target, grounded=True, mixer="gru" if name == "gru" else "mlp")
        TRAINED_HEADS.write(
            heads.bfloat16(), tmp_path / f"models/heads/ablation/{name}/heads.safetensors", target.hidden.identity, {}
        )
    files = [path for path in swept() if Path(path).parent.name in MADE]
    params = {"+drafter": "grounded", "structure": "heads_ablation/tree", "drafter.model": f"'{','.join(files)}'"}
    sweep = ",".join(f"{key}: {value}" for key, value in params.items())
    small = ("+debug=pocket", "target.compile=false", "measurement.max_new_tokens=6", "measurement.bootstrap=50")
    ended = in_process(run, "+experiment=grounded_ablation", *small, f"hydra.sweeper.params={{{sweep}}}")
    assert ended.code == 0, ended.error
    runs = [open_folder(path.parent) for path in tmp_path.glob("multirun/**/summary.json")]
    assert {run.params["drafter.model"] for run in runs} == set(files)
    trees = [run.rounds()["offered_nodes"].max() for run in runs]
    texts = [run.generations().set_index(["method", "gamma", "prompt"])["text"] for run in runs]
    assert trees == [24, 24] and texts[0].equals(texts[1].reindex(texts[0].index))
    (table,) = tmp_path.glob("multirun/**/sweep.csv")
    with table.open(newline="", encoding="utf-8") as file:
        assert [row["exit code"] for row in csv.DictReader(file)] == ["0", "0"]
