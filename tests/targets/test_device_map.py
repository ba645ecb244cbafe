"""A target whose layers a device map places: the same tokens, and a run that says what its times are worth."""

import json

import pandas as pd
import pytest
import torch
import yaml

from specdec.errors import UsageError
from specdec.models.spread import mapped

COMMON = """+drafter=ngram prompts=random_tokens prompts.vocabulary=64 prompts.length=20 prompts.limit=2
measurement.max_new_tokens=12 measurement.gammas=[2] measurement.warmup_tokens=0 measurement.calibration_calls=1
target.compile=false measurement.bootstrap=50 measurement.cost_contexts=[] tracking.enabled=false
target.dtype=float32""".split()
OFFLOADED = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk", "model.norm": "cpu"}
OFFLOADED |= {"model.rotary_emb": "cpu", "lm_head": "cpu"}


@pytest.fixture(scope="module")
def model(save_llama, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_llama(folder)
    (folder / "map.yaml").write_text(yaml.safe_dump(OFFLOADED))
    (folder / "list.json").write_text(json.dumps(["cpu"]))
    return folder


@pytest.fixture
def command(run_into, model):
    return lambda name, *arguments: run_into(name, *COMMON, f"target.model={model}", *arguments)


@pytest.mark.slow
def test_offloaded_layers_write_the_same_tokens_and_are_flagged(command, model):
    folders = {}
    for name, places in (("plain", "{model: cpu, lm_head: cpu}"), ("apart", model / "map.yaml")):
        code, error, folders[name] = command(name, f"target.device_map={places}")
        assert code == 0, error
    rounds = {name: pd.read_parquet(folder / "rounds.parquet") for name, folder in folders.items()}
    counted = ["method", "gamma", "prompt", "round", "offered", "accepted", "committed"]
    pd.testing.assert_frame_equal(rounds["apart"][counted], rounds["plain"][counted])
    texts = {
        name: [json.loads(line)["generated_token_ids"] for line in (folder / "generations.jsonl").open()]
        for name, folder in folders.items()
    }
    assert texts["apart"] == texts["plain"]
    described = json.loads((folders["apart"] / "environment.json").read_text())["model"]
    assert described["device_map"] == {"cpu": 5, "disk": 1} and described["compilation"] is None
    assert "Speedups of this run are distorted" in (folders["apart"] / "report.md").read_text()
    assert "distorted" not in (folders["plain"] / "report.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["target.device_map=nowhere.yaml"], "Bad value target.device_map=nowhere.yaml: it cannot be read"),
        (["target.device_map={model}/list.json"], "the file holds no mapping of modules to devices"),
        (["target.device_map={{model: cuda:99}}"], "there is no device 'cuda:99'"),
        (["target.device_map={{model: cpu, lm_haed: cpu}}"], "has no module 'lm_haed'. Did you mean lm_head?"),
        (["target.device_map=auto", "target.device=cpu"], "which does not go with target.device=cpu"),
    ],
)
def test_maps_that_do_not_fit_are_refused(command, model, arguments, says):
    code, error, folder = command("refused", *(argument.format(model=model) for argument in arguments))
    assert code == 2 and says in error and error.count("\n") == 1
    assert not (folder / "rounds").exists()


@pytest.mark.parametrize("place", ["cuda7", "cuda:2", "mps", 2, -1, True, 0.0])
def test_a_place_that_names_no_device_is_refused(monkeypatch, place):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UsageError, match="value target.device_map: .*; use cpu, disk, or one of the 2 GPUs"):
        mapped({"model": place})


@pytest.mark.parametrize("place", ["cpu", "disk", "cuda", "cuda:1", 1])
def test_a_place_may_be_any_device_that_is_there(monkeypatch, place):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert mapped({"model": place})["device_map"] == {"model": place}
