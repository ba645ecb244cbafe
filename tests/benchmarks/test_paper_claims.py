"""Measures what papers claim, for `analysis/results/paper_claims.json`, which `analysis.papers.claims` reads.

Run by hand: `python -m pytest -n 0 -m benchmark tests/benchmarks/test_paper_claims.py`, with `-k blockwise` a part of
it. A run takes a minute or so on two quiet cores. Each is one command on the pocket target, in float32 so that all
drafters write the same text; within a run drafter and baseline take turns, prompt by prompt. The file keeps what other
parts have found.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from specdec.analysis.papers import claim_results
from specdec.analysis.read.runs import Run, open_folder
from specdec.analysis.rounds import prompt_sums
from specdec.analysis.studies.all_drafters import PLAIN
from specdec.drafters import drafters
from specdec.experiment.environment import cpu, versions

pytestmark = pytest.mark.benchmark

SHARED = ("target.dtype=float32", "measurement.cost_contexts=[]", "tracking.enabled=false")
ONE_GAMMA = "measurement.gammas=[]"
SAMPLED = ("sampling=temperature", ONE_GAMMA)
TOP = ("+experiment=blockwise", *SAMPLED, "verifier.acceptance=top_k")
RUNS = {  # name: prompts, tokens of each, and the command's other overrides
    "small_model": (20, 96, "+drafter=small_model", "measurement.gammas=[1,2,3,4,6,8]"),
    "small_model_sampled": (20, 96, "+drafter=small_model", *SAMPLED),
    "blockwise": (12, 64, "+experiment=blockwise"),
    "bigram": (12, 64, "+drafter=bigram", "structure.gamma=3", ONE_GAMMA),
    "bigram_sampled": (12, 64, "+drafter=bigram", "structure.gamma=3", *SAMPLED),
    "unigram": (12, 64, "+drafter=unigram", "structure.gamma=1", ONE_GAMMA),
    "unigram_sampled": (12, 64, "+drafter=unigram", "structure.gamma=1", *SAMPLED),
    "blockwise_top_1": (12, 64, *TOP, "verifier.top_k=1"),
    "blockwise_top_2": (12, 64, *TOP, "verifier.top_k=2"),
    "small_model_docs": (20, 96, "+drafter=small_model", "prompts=stdlib_docs", ONE_GAMMA),
}
COMPARED = ("blockwise", "grounded", "medusa", "ngram")
STUDIES = {
    "all_drafters": (
        *(12, 64, "+experiment=all_drafters", "study.nodes=4"),
        f"study.leave_out=[{','.join(name for name in drafters.names() if name not in COMPARED)}]",
    ),
    "typical_acceptance": (8, 48, "+experiment=typical_acceptance"),
    "ngrammys_ablation": (12, 64, "+experiment=ngrammys_ablation"),
}


def finished(name: str, overrides: Sequence[str]) -> Run:
    """Return the run of this name below `outputs/` of the working folder, made if it has not finished there."""
    folder = Path("outputs/paper_claims", name).resolve()
    if not any((folder / name).is_file() for name in ("summary.json", "study.json")):
        command = [sys.executable, "-m", "specdec.run", *overrides, f"hydra.run.dir={folder}"]
        assert subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}).returncode == 0
    return open_folder(folder)


def measured(run: Run) -> dict[str, Any]:
    """Return sums by prompt of the baseline and of each gamma, from which every figure and interval can be made."""
    arms = run.arms()
    baseline = prompt_sums(arms.plain())
    found: dict[str, Any] = {
        "prompts": list(baseline.index),
        "baseline": _lists(baseline),
        "arms": {str(gamma): _lists(prompt_sums(arm).loc[baseline.index]) for gamma, arm in arms.by_gamma().items()},
        "metrics": {name: round(run.metrics[name], 5) for name in claim_results.LOGGED if name in run.metrics},
    }
    alpha = run.alpha_sums()
    if len(alpha):
        sums = alpha.groupby("prompt")[["numerator", "denominator"]].sum().loc[baseline.index]
        found["alpha"] = {name: [round(float(value), 5) for value in sums[name]] for name in sums}
    return found


def _lists(sums: pd.DataFrame) -> dict[str, list[float]]:
    return {
        "tokens": [int(value) for value in sums["tokens"]],
        "rounds": [int(value) for value in sums["rounds"]],
        "seconds": [round(float(value), 6) for value in sums["round_s"]],
        "verify": [round(float(value), 6) for value in sums["verify_s"]],
    }


def record(name: str, run: Run, overrides: Sequence[str], found: dict[str, Any]) -> None:
    """Write the entry into the file, in the place of an earlier one of this name."""
    path = claim_results.RESULT
    kept = json.loads(path.read_text(encoding="utf-8"))["figures"] if path.is_file() else []
    environment = run.environment()
    entry = {
        "run": name,
        "command": " ".join(("python -m specdec.run", *overrides)),
        "date": time.strftime("%Y-%m-%d"),
        "cpu": environment["cpu"]["model"],
        "threads": environment["cpu"]["torch_threads"],
        "model": run.params["target.model"],
        **found,
    }
    order = [*RUNS, *STUDIES]
    rows = sorted([one for one in kept if one["run"] != name] + [entry], key=lambda one: order.index(one["run"]))
    about = {"date": time.strftime("%Y-%m-%d"), "cpu": cpu(), "versions": versions()}
    # A run a line, so that one that was measured again changes its own.
    head = [f' "{key}": {json.dumps(value)}' for key, value in about.items()]
    lines = ' "figures": [\n  ' + ",\n  ".join(map(json.dumps, rows)) + "\n ]"
    path.write_text("{\n" + ",\n".join([*head, lines]) + "\n}\n", encoding="utf-8")


def run_of(name: str, prompts: int, tokens: int, *overrides: str) -> tuple[Run, list[str]]:
    every = [*overrides, f"prompts.limit={prompts}", f"measurement.max_new_tokens={tokens}", *SHARED]
    return finished(name, every), every


@pytest.mark.parametrize("name", RUNS)
def test_a_run(name):
    run, overrides = run_of(name, *RUNS[name])
    found = measured(run)
    record(name, run, overrides, found)
    assert len(found["prompts"]) == RUNS[name][0]


@pytest.mark.parametrize("name", STUDIES)
def test_a_study(name):
    run, overrides = run_of(name, *STUDIES[name])
    metrics = json.loads(run.fetch("study.json").read_text(encoding="utf-8"))["metrics"]
    found: dict[str, Any] = {"metrics": {key: round(value, 5) for key, value in metrics.items() if value is not None}}
    if name == "all_drafters":
        found |= by_arm(pd.read_parquet(run.fetch("live.parquet")))
    record(name, run, overrides, found)
    assert metrics


def by_arm(live: pd.DataFrame) -> dict[str, Any]:
    """Return what `measured` does, for the arms of one session by name."""
    sums = {arm: part.groupby("prompt").sum(numeric_only=True) for arm, part in live.groupby("arm")}
    baseline = sums.pop(PLAIN)
    return {
        "prompts": list(baseline.index),
        "baseline": _lists(baseline),
        "arms": {arm: _lists(part.loc[baseline.index]) for arm, part in sums.items()},
    }
