"""Faults injected into commands, those of the page on security: one sentence, exit code, status of the MLflow run."""

import errno
import json
import os
import re
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from fixtures.resumed_runs import config_of
from safetensors.torch import load_file, save_file

import specdec.registry
from specdec import hub, run
from specdec.analysis.read.runs import open_folder
from specdec.drafters import drafters
from specdec.errors import EnvironmentFault, ModelLoadError, UsageError
from specdec.models.load import load_model
from specdec.plan.plan import plan
from specdec.session import experiment
from specdec.targets.table import Table

SMALL = ("measurement.max_new_tokens=8", "measurement.gammas=[2]", "structure.gamma=2", "measurement.bootstrap=20")


@pytest.fixture
def tracked(in_process, made_database, undrawn_pictures):
    """`tracked("+drafter=ngram", ...)` runs specdec.run on the table target, with a store."""
    return partial(in_process, run, "+debug=tiny", *SMALL)


def statuses(folder: Path) -> list[str]:
    """Return the statuses of the main runs in the folder's database."""
    with sqlite3.connect(folder / "mlflow.db") as connection:
        query = (
            "select status from runs join tags on tags.run_uuid = runs.run_uuid "
            "where key = 'specdec.role' and value = 'main'"
        )
        return sorted(row[0] for row in connection.execute(query))


def one_sentence(error: str) -> str:
    (line,) = (line for line in error.splitlines() if line.startswith("specdec: "))
    assert "Traceback" not in error
    return line


# Models -------------------------------------------------------------------------------------------


@pytest.fixture
def model(tiny_llama, tmp_path):
    path = tmp_path / "model"
    tiny_llama(40).float().save_pretrained(path)
    return path


@pytest.mark.slow
def test_huge_weights_end_the_run_as_failed_with_the_position(tracked, model, tmp_path):
    """A flipped bit of an exponent leaves a weight that is finite, and logits that are not."""
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"][3] = 3e38
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    causal = ("target=causal", f"target.model={model}", "target.dtype=float32", "target.compile=false")
    code, _, error = tracked("+drafter=ngram", *causal, "prompts.tokens=[[3,4,5]]")
    assert code == 4 and re.search(r"logits are not finite after position \d+:", one_sentence(error)), error
    assert statuses(tmp_path) == ["FAILED"]


def test_a_config_of_more_layers_than_tensors_is_refused_at_once(model):
    config = json.loads((model / "config.json").read_text()) | {"num_hidden_layers": 2**31}
    (model / "config.json").write_text(json.dumps(config))
    says = r"configuration says 2,147,483,648 layers, and its files hold \d+ tensors"
    with pytest.raises(ModelLoadError, match=says):
        load_model(str(model), dtype=None, device=torch.device("cpu"), attention="auto")


def test_a_hub_that_does_not_answer_is_asked_once(monkeypatch):
    import huggingface_hub.constants as constants

    asked: list[Any] = []

    def silent(request: Any, timeout: float) -> None:
        asked.append(request.full_url)
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(hub, "urlopen", silent)
    monkeypatch.setattr(hub, "_found", {})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "")  # restored at the end, whatever is set in between
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.test")
    hub._silent.cache_clear()
    for _ in range(2):
        with pytest.raises(ModelLoadError) as refusal:
            load_model("nobody/nothing", dtype=None, device=torch.device("cpu"), attention="auto")
        sentence = str(refusal.value)
        assert (
            f"from the local cache {constants.HF_HUB_CACHE}" in sentence
            and "http://hub.test does not answer" in sentence
        )
        assert "hf download nobody/nothing" in sentence
    assert asked == ["http://hub.test"] and constants.HF_HUB_OFFLINE and os.environ["HF_HUB_OFFLINE"] == "1"


# The environment ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_disk_that_fills_up_ends_the_run_as_failed(tracked, tmp_path, monkeypatch):
    """The outputs are written to a device that is always full."""
    real = Path.open

    def full(self, *mode, **options):
        return real(Path("/dev/full") if self.name == "generations.tmp" else self, *mode, **options)

    monkeypatch.setattr(Path, "open", full)
    code, _, error = tracked("+drafter=oracle", "hydra.run.dir=full")
    assert code == 4, error
    sentence = one_sentence(error)
    assert "The disk is full" in sentence and "hydra.run.dir=FOLDER" in sentence
    assert statuses(tmp_path) == ["FAILED"]


def test_a_run_that_will_not_fit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(experiment.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 10 << 20}))
    with pytest.raises(EnvironmentFault, match=" has 10 MB free, and this run may write "):
        experiment.run_experiment(plan(config_of("+drafter=oracle")), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_cell_without_memory_fails_alone_and_unusable_prompts_are_counted(tracked, tmp_path, monkeypatch):
    """A sweep of two cells on a prompt set of which half can be used."""
    verify = Table.verify

    def greedy_for_memory(self, draft):
        if len(draft) == 3:
            torch.empty(1 << 60)
        return verify(self, draft)

    monkeypatch.setattr(Table, "verify", greedy_for_memory)
    prompts = (f"prompts.tokens=[[0],[],[1],{[1] * 40}]".replace(" ", ""), "target.context_length=30")
    code, _, error = tracked("-m", "+drafter=oracle", "structure.gamma=3,1", *prompts)
    assert code == 3, error
    folders = sorted(tmp_path.glob("multirun/*/*/[01]"))
    failed, other = (json.loads((folder / "cell.json").read_text()) for folder in folders)
    assert failed["exit_code"] == 4 and str(4 << 60) in failed["sentence"] and "Memory ran out" in failed["sentence"]
    assert other["exit_code"] == 0 and "speedup" in other["results"]
    assert statuses(tmp_path) == ["FAILED", "FINISHED"]
    assert "Skipped prompts: 1 empty, 1 too_long." in open_folder(folders[1]).summary()["notes"]


@pytest.mark.parametrize("error", [ImportError("no module\nnamed torch2"), SystemExit("not licensed")])
def test_a_broken_plugin_is_left_out_and_named(monkeypatch, caplog, error):
    class Entry:
        name = "their_drafter"

        def load(self):
            raise error

    found = {"specdec.drafters": [Entry()]}
    monkeypatch.setattr(specdec.registry, "entry_points", lambda group: found.get(group, []))
    monkeypatch.setattr(drafters, "_loaded", False)
    monkeypatch.setattr(drafters, "_broken", {})
    assert "ngram" in drafters.names()
    (warning,) = (record.getMessage() for record in caplog.records)
    assert "their_drafter" in warning and type(error).__name__ in warning and "\n" not in warning
    with pytest.raises(UsageError, match=r"The plugin 'their_drafter' was left out: \w+: .+\.$"):
        drafters.get("their_drafter")
