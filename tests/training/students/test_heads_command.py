"""`python -m specdec.train +heads=medusa`: the command that it ends with, and two processes that train at once."""

import contextlib
import csv
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from safetensors.torch import load_file

from specdec import run, train
from specdec.analysis.figures import style

ARGUMENTS = (
    "+heads=medusa", "head_data@data=text", "data.source.path=text.txt", "data.source.heldout_every=8",
    "target.model=target", "data.sequence_length=16", "data.batch=4", "micro_batch=2", "data.passes=null",
    "data.sequences=null", "data.heldout=8", "bfloat16=false", "save_dtype=float32", "device=cpu",
    "tracking.enabled=false", "monitor.heldout_every_steps=50", "monitor.checkpoint_seconds=0.001",
    # Adam with its own weight decay notices how large a gradient is; without, it would not.
    "optimizer.name=adam", "optimizer.weight_decay=0.1", "optimizer.grad_clip=1000",
)  # fmt: skip
STEPS = 8


@pytest.fixture(scope="module")
def folder(tiny_corpus, model_folder, tmp_path_factory):
    """A tiny Llama with its tokenizer, and a text."""
    folder = tmp_path_factory.mktemp("command")
    shutil.copytree(model_folder, folder / "target")
    lines = [tiny_corpus.tokenizer.decode(tiny_corpus.heldout["code"][i : i + 60]) for i in range(0, 2400, 30)]
    (folder / "text.txt").write_text("\n".join(line.replace("\n", " ") for line in lines) + "\n", encoding="utf-8")
    return folder


def training(output: str, *changes: str, steps: int = STEPS) -> list[str]:
    return [*ARGUMENTS, f"data.steps={steps}", f"output_dir={output}", *changes]


def finished(folder: Path, module: ModuleType, *arguments: str) -> str:
    """Run a command in this process and in `folder`, and return what it printed."""
    shown = io.StringIO()
    streams = contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown)
    with pytest.MonkeyPatch.context() as patch, streams[0], streams[1]:
        patch.chdir(folder)
        patch.setattr(style, "save", lambda *_: None)
        patch.setattr("sys.argv", [module.__name__, *arguments])
        GlobalHydra.instance().clear()
        module.main()
    GlobalHydra.instance().clear()
    return shown.getvalue()


@pytest.mark.slow
def test_a_training_ends_with_the_command_that_uses_its_heads(folder):
    """One head is not deep enough for the drafter's usual tree, and heads fit their own target alone."""
    output = finished(folder, train, *training("short", "heads.count=1", steps=2))
    (use,) = re.findall(r"Use it: python -m specdec.run (.*)", output)
    small = "prompts=random_tokens prompts.count=2 prompts.length=8 prompts.vocabulary=200 measurement.max_new_tokens=4"
    off = "measurement.sampled_temperature=null measurement.cost_contexts=[] measurement.bootstrap=50 "
    off += "target.compile=false tracking.enabled=false"
    said = finished(folder, run, *shlex.split(use), *small.split(), *off.split())
    assert "medusa on target" in said and "All 2 outputs are identical" in said


@pytest.mark.slow
def test_two_processes_train_what_one_does(folder):
    finished(folder, train, *training("whole"))
    launch = "torch.distributed.run --standalone --nproc-per-node 2 -m".split()  # what accelerate launch runs on GPUs
    ended = subprocess.run(
        [sys.executable, "-m", *launch, "specdec.train", *training("two")], cwd=folder, text=True, timeout=300,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    assert ended.stdout.count("saved to") == 1, ended.stdout  # one of them writes
    assert json.loads((folder / "two" / "summary.json").read_text())["processes"] == 2
    whole, both = (load_file(folder / name / "heads.safetensors") for name in ("whole", "two"))
    for name, weight in both.items():
        torch.testing.assert_close(weight, whole[name], rtol=1e-3, atol=1e-5, msg=name)
    losses = [
        [float(row["train_loss"]) for row in csv.DictReader((folder / name / "history.csv").open())]
        for name in ("whole", "two")
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3) and len(losses[0]) == STEPS
