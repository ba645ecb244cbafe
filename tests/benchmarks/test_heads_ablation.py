"""Measures the parts of grounded heads: each recipe of `conf/heads/ablation` trained and decoded, for notebook 04.

With `-k gru` a part of it is run. A variant is trained in two minutes or so on two cores and decoded in one. Trainings
go on where they stopped, below `models/` of the working folder; the file keeps what other parts have found.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from math import isnan
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from fixtures.measuring import kept_figures, machine, write_lines

from specdec.analysis.read.runs import Run, open_folder
from specdec.analysis.research import heads_ablation
from specdec.analysis.rounds import drafted, prompt_sums
from specdec.config import BASELINE, config_dir
from specdec.published.network_files import TRAINED_HEADS
from specdec.training.students.head_student import HeadStudent
from specdec.training.students.loss_and_accuracy import HeadAccuracy
from specdec.training.students.state_student import load_target

pytestmark = pytest.mark.benchmark

VARIANTS = sorted(path.stem for path in Path(config_dir(), "heads", "ablation").glob("*.yaml"))
RESULT = Path(__file__).resolve().parents[2] / "analysis" / "results" / "heads_ablation.json"
HEADS = 5
COSTS = ("cost/t1_ms", "cost/c", "cost/g", "cost/v", "speedup", "speedup.ci_low", "speedup.ci_high")


def command(module: str, *arguments: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", f"specdec.{module}", *arguments, "tracking.enabled=false"],
        env=os.environ | {"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0)))},
    )
    assert ended.returncode == 0


def trained(variant: str) -> Path:
    """The variant's file, which a training that is finished only scores anew."""
    folder = Path("models/heads/ablation", variant)
    if not (folder / "summary.json").is_file():
        command("train", f"+heads=ablation/{variant}")
    return folder / "heads.safetensors"


def decoded(path: Path, *structure: str) -> Run:
    """A run of the overlay with these heads, on the prompts of all."""
    kind = "grounded" if TRAINED_HEADS.read(path).config.grounded else "medusa"
    folder = Path("outputs/heads_ablation", time.strftime("%Y-%m-%d_%H-%M-%S"))
    overlay = ("+experiment=grounded_ablation", "hydra.mode=RUN", "hydra.sweeper.params=null")
    command("run", *overlay, f"+drafter={kind}", f"drafter.model={path}", *structure, f"hydra.run.dir={folder}")
    return open_folder(folder)


@torch.inference_mode()
def along_text(path: Path, run: Run, group_values: Callable[..., dict[str, Any]]) -> dict[str, list[Any]]:
    """Of each prompt, in order: whether the target's own text is repetitive; and of each head how many tokens of that
    text it was asked for, and how many were its first choice, given the true ones before.
    """
    values = group_values("target", "causal", dtype=run.params["target.dtype"], compile=False)
    target = load_target(values, torch.device("cpu"))
    heads = TRAINED_HEADS.load(path, target)
    found: dict[str, list[Any]] = {"repetitive": [], "asked": [], "hits": []}
    texts = run.generations()
    for text in texts[texts["method"] == BASELINE].sort_values("prompt").itertuples():
        tokens = torch.tensor([text.prompt_token_ids + text.generated_token_ids])
        scored = torch.arange(tokens.shape[1]).unsqueeze(0) >= len(text.prompt_token_ids)
        states, _ = target.hidden.sequence(tokens, heads.config.offset_of(target.hidden.layers))
        count = HeadAccuracy(len(heads))
        HeadStudent.count(count, heads, states, tokens, scored)
        found["repetitive"].append(bool(text.flagged))
        found["asked"].append(count.seen.tolist())
        found["hits"].append(count.hits[:, 0].tolist())
    return found


def by_prompt(rounds: pd.DataFrame) -> dict[str, list[Any]]:
    """Counts of each prompt, in order: enough to make every figure, its interval and every paired difference anew."""
    sums = prompt_sums(rounds)
    counts = {name: [int(value) for value in sums[name]] for name in ("tokens", "rounds")}
    return {"prompts": list(sums.index), **counts}


def rounded(value: float) -> float | None:
    """None for an accuracy at no position, which JSON has no number for."""
    return None if isnan(value) else round(value, 4)


def row(variant: str, path: Path, run: Run, group_values: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    stored = TRAINED_HEADS.read(path)
    heldout, places = stored.training["heldout"], range(1, stored.config.count + 1)
    accuracies = ("top1", "top1_given_earlier", "top5", "top5_given_earlier")
    environment, rounds = run.environment(), run.rounds()
    assert {part for part in rounds["method"]} == {BASELINE, run.params["drafter.name"]}
    return {
        "variant": variant,
        "structure": run.params["structure.name"],
        "depth": int(run.account()["primary_gamma"]),
        "nodes": int(rounds["offered_nodes"].max()),
        "date": time.strftime("%Y-%m-%d"),
        "heads": {key: value for key, value in stored.training["recipe"]["heads"].items() if key != "name"},
        "training": {key: stored.training[key] for key in ("parameters", "steps", "tokens", "seconds", "hardware")}
        | {"text": stored.training["data"]["corpus_sha256"][:16]},
        "heldout": {name: [rounded(heldout[f"heldout/head_{k}.{name}"]) for k in places] for name in accuracies}
        | {"target_top1": round(heldout["heldout/target.top1"], 4)},
        "decoding": {
            "model": run.params["target.model"],
            "dtype": run.params["target.dtype"],
            "prompts": run.params["prompts.name"],
            "max_new_tokens": int(run.params["measurement.max_new_tokens"]),
            "cpu": environment["cpu"]["model"],
            "threads": environment["cpu"]["torch_threads"],
        },
        "cost": {name: round(run.metrics[name], 4) for name in COSTS},
        "by_prompt": by_prompt(drafted(rounds)) | along_text(path, run, group_values),
    }


def record(found: dict[str, Any]) -> None:
    """Add the row, or put it in the place of an earlier one on the same text."""
    key = ("structure", "variant", "depth")

    def place(one: dict[str, Any]) -> list[str]:
        return [str(part) for part in (*(one[name] for name in key), *heads_ablation.text_of(one))]

    rows = sorted([*(one for one in kept_figures(RESULT) if place(one) != place(found)), found], key=place)
    write_lines(RESULT, machine(), figures=rows)


def measured(variant: str, group_values: Callable[..., dict[str, Any]], *structure: str) -> dict[str, Any]:
    path = trained(variant)
    found = row(variant, path, decoded(path, *structure), group_values)
    record(found)
    return found


@pytest.mark.parametrize("variant", VARIANTS)
def test_tokens_per_round_of_a_variant(variant, group_values):
    assert measured(variant, group_values, "structure=heads_ablation/tree")["depth"] == HEADS


@pytest.mark.parametrize("depth", range(1, HEADS))
def test_fewer_heads(depth, group_values):
    """Of the five, those that a shallower tree has a level for."""
    changes = ("structure=heads_ablation/tree", f"structure.depth={depth}")
    assert measured("grounded", group_values, *changes)["depth"] == depth


@pytest.mark.parametrize("variant", ["grounded", "medusa"])
def test_tokens_per_round_in_a_chain(variant, group_values):
    """Without siblings: what first choices alone are worth."""
    assert measured(variant, group_values, "structure=chain", f"structure.gamma={HEADS}")["nodes"] == HEADS
