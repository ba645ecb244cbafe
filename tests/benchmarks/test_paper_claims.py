"""Measures what papers claim, for `analysis.research.claims`; a quarter of an hour of one quiet core.

With `-k blockwise` a part of it is run. Each is one command on the pocket target, in float32 so that all drafters write
the same text; within a run drafter and baseline take turns, prompt by prompt. The file keeps what other parts have
found, and has with each run its command, date, commit and core, and the machine's load before and after it.
"""

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from fixtures.measured_commands import finished, provenance
from fixtures.measuring import kept_figures, write_lines

from specdec.analysis.comparisons import interval
from specdec.analysis.read.runs import Run
from specdec.analysis.research import claim_results
from specdec.analysis.rounds import prompt_sums
from specdec.analysis.studies.all_drafters import PLAIN
from specdec.analysis.studies.lenience import PLAIN as NO_DRAFTS
from specdec.analysis.studies.lenience import drafter_alphas
from specdec.analysis.studies.phase_transition import UNIT, USUAL
from specdec.drafters import drafters

pytestmark = pytest.mark.benchmark

SHARED = ("target.dtype=float32", "measurement.cost_contexts=[]", "tracking.enabled=false")
ONE_GAMMA = "measurement.gammas=[]"
SAMPLED = ("sampling=temperature", ONE_GAMMA)
TOP = ("+experiment=blockwise", *SAMPLED, "verifier.acceptance=top_k")
RUNS = {  # name: prompts, tokens of each, and the command's other overrides
    "small_model": (20, 48, "+drafter=small_model", "measurement.gammas=[2,4,8]"),
    "small_model_sampled": (20, 48, "+drafter=small_model", *SAMPLED),
    "blockwise": (12, 48, "+experiment=blockwise"),
    "bigram": (12, 48, "+drafter=bigram", "structure.gamma=3", ONE_GAMMA),
    "bigram_sampled": (12, 48, "+drafter=bigram", "structure.gamma=3", *SAMPLED),
    "unigram": (12, 48, "+drafter=unigram", "structure.gamma=1", ONE_GAMMA),
    "unigram_sampled": (12, 48, "+drafter=unigram", "structure.gamma=1", *SAMPLED),
    "blockwise_top_1": (12, 48, *TOP, "verifier.top_k=1"),
    "blockwise_top_2": (12, 48, *TOP, "verifier.top_k=2"),
    "small_model_docs": (20, 48, "+drafter=small_model", "prompts=stdlib_docs", ONE_GAMMA),
}
COMPARED = ("blockwise", "grounded", "medusa", "ngram")
STUDIES = {
    "all_drafters": (
        *(12, 48, "+experiment=all_drafters", "study.nodes=4"),
        f"study.leave_out=[{','.join(name for name in drafters.names() if name not in COMPARED)}]",
    ),
    "typical_acceptance": (8, 32, "+experiment=typical_acceptance"),
    "ngrammys_ablation": (12, 48, "+experiment=ngrammys_ablation"),
    "lenience": (8, 32, "+experiment=lenience"),
    "ngrammys_grid": (
        *(8, 32, "+experiment=ngrammys_grid", "target.evaluation=rows"),
        *("study.k=[1,5,10]", "study.w=[1,4,10]", "study.repeats=2"),
    ),
    "phase_transition": (
        *(1, 64, "+experiment=phase_transition"),
        *("study.k=[1,2,5,10]", "study.w=[0,1,2,4,10]", "study.contexts=[50,500,1000]"),
    ),
}


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
    counts = {name: [int(value) for value in sums[name]] for name in ("tokens", "rounds")}
    times = {"seconds": "round_s", "verify": "verify_s"}
    return counts | {name: [round(float(value), 6) for value in sums[column]] for name, column in times.items()}


def record(name: str, run: Run, found: dict[str, Any]) -> None:
    """Write the entry into the file, in the place of an earlier one of this name."""
    entry = {"run": name, **provenance(run), "model": run.params["target.model"], **found}
    order = [*RUNS, *STUDIES]
    others = [one for one in kept_figures(claim_results.RESULT) if one["run"] != name]
    rows = sorted([*others, entry], key=lambda one: order.index(one["run"]))
    environment = run.environment()
    about = {"date": entry["date"], "cpu": environment["cpu"], "versions": environment["versions"]}
    write_lines(claim_results.RESULT, about, figures=rows)


def run_of(name: str, prompts: int, tokens: int, *overrides: str) -> Run:
    """Return the run of this name below `outputs/` of the working folder, made if it has not finished there."""
    chosen = any(each.startswith("prompts=") for each in overrides)
    sizes = (f"prompts.limit={prompts}", f"measurement.max_new_tokens={tokens}")
    every = [*overrides, *([] if chosen else ["prompts=stdlib_code"]), *sizes, *SHARED]
    return finished(Path("outputs/paper_claims", name), every)


@pytest.mark.parametrize("name", RUNS)
def test_a_run(name):
    run = run_of(name, *RUNS[name])
    found = measured(run)
    record(name, run, found)
    assert len(found["prompts"]) == RUNS[name][0]


@pytest.mark.parametrize("name", STUDIES)
def test_a_study(name):
    run = run_of(name, *STUDIES[name])
    metrics = json.loads(run.fetch("study.json").read_text(encoding="utf-8"))["metrics"]
    found: dict[str, Any] = {"metrics": {key: round(value, 5) for key, value in metrics.items() if value is not None}}
    if name == "all_drafters":
        found |= by_arm(pd.read_parquet(run.fetch("live.parquet")), PLAIN)
    if name == "lenience":
        found["metrics"] |= rises(pd.read_parquet(run.fetch("alphas.parquet")))
        outputs = pd.read_parquet(run.fetch("outputs.parquet")).rename(columns={"seconds": "round_s"})
        names = outputs["form"] + outputs["lenience"].map(" {:g}".format)
        found |= by_arm(outputs.assign(arm=names), f"sampled {NO_DRAFTS:g}")
    if name == "phase_transition":
        found["slowdowns"] = slowdowns(pd.read_parquet(run.fetch("block_times.parquet")))
    record(name, run, found)
    assert metrics


def by_arm(lines: pd.DataFrame, plain: str) -> dict[str, Any]:
    """Return what `measured` does, for the arms of one session by name."""
    sums = {arm: part.groupby("prompt").sum(numeric_only=True) for arm, part in lines.groupby("arm")}
    baseline = sums.pop(plain)
    return {
        "prompts": list(baseline.index),
        "baseline": _lists(baseline),
        "arms": {arm: _lists(part.loc[baseline.index]) for arm, part in sums.items()},
    }


def rises(alphas: pd.DataFrame) -> dict[str, float]:
    """Return how much alpha rises over that of lenience 1, by drafter, form and lenience: `lenience/rise.*`."""
    found: dict[str, float] = {}
    for line in drafter_alphas(alphas, claim_results.REPLICATES, 0).to_dict("records"):
        name = f"lenience/rise.{line['drafter']}.{line['form']}.{line['lenience']:g}"
        found |= interval(line, "rise").as_metrics(name)
    return {name: round(value, 5) for name, value in found.items()}


def slowdowns(times: pd.DataFrame) -> dict[str, list[float]]:
    """Return t(10, 10) over t(1, 1) of each pass, by the number of tokens in the cache, evaluated in rows."""
    seconds = times[times["evaluation"] == "rows"].set_index(["k", "w", "context", "call"])["seconds"].sort_index()
    ratios = seconds.loc[USUAL] / seconds.loc[UNIT]
    return {str(context): [round(float(value), 4) for value in part] for context, part in ratios.groupby("context")}
