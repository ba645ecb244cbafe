"""`python -m specdec.train +heads=medusa`: the command that it ends with, and two processes that train at once."""

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

from specdec import run, train

ARGUMENTS = (
    "+heads=medusa", "head_data@data=text", "data.source.path=text.txt", "data.source.heldout_every=8",
    "target.model=target", "data.sequence_length=16", "data.batch=4", "micro_batch=2", "data.passes=null",
    "data.sequences=null", "data.heldout=8", "bfloat16=false", "save_dtype=float32", "device=cpu",
    "tracking.enabled=false", "monitor.heldout_every_steps=50", "monitor.checkpoint_seconds=0.001",
    # Adam with its own weight decay notices how large a gradient is; without, it would not.
    "optimizer.name=adam", "optimizer.weight_decay=0.1", "optimizer.grad_clip=1000",
)  # fmt: skip
STEPS = 8


@pytest.fixture
def folder(tiny_corpus, model_folder, tmp_path):
    """The folder of commands, with a tiny Llama with its tokenizer, and a text."""
    shutil.copytree(model_folder, tmp_path / "target")
    lines = [tiny_corpus.tokenizer.decode(tiny_corpus.heldout["code"][i : i + 60]) for i in range(0, 2400, 30)]
    (tmp_path / "text.txt").write_text("\n".join(line.replace("\n", " ") for line in lines) + "\n", encoding="utf-8")
    return tmp_path


def training(output: str, *changes: str, steps: int = STEPS) -> list[str]:
    return [*ARGUMENTS, f"data.steps={steps}", f"output_dir={output}", *changes]


@pytest.mark.slow
@pytest.mark.usefixtures("folder", "undrawn_pictures")
def test_a_training_ends_with_the_command_that_uses_its_heads(in_process):
    """One head is not deep enough for the drafter's usual tree, and heads fit their own target alone."""
    ended = in_process(train, *training("short", "heads.count=1", steps=2))
    (use,) = re.findall(r"Use it: python -m specdec.run (.*)", ended.output + ended.error)
    small = "prompts=random_tokens prompts.count=2 prompts.length=8 prompts.vocabulary=200 measurement.max_new_tokens=4"
    off = "measurement.sampled_temperature=null measurement.cost_contexts=[] measurement.bootstrap=50 "
    off += "target.compile=false tracking.enabled=false"
    ended = in_process(run, *shlex.split(use), *small.split(), *off.split())
    said = ended.output + ended.error
    assert "medusa on target" in said and "All 2 outputs are identical" in said


@pytest.mark.slow
def test_two_processes_train_what_one_does(in_process, folder):
    assert in_process(train, *training("whole")).code == 0
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
