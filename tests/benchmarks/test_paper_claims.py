"""Measures what papers claim, for `analysis.research.claims`; a quarter of an hour of one quiet core.

With `-k blockwise` a part of it is run. Each is one command on the pocket target, in float32 so that all drafters write
the same text; within a run drafter and baseline take turns, prompt by prompt. The file keeps what other parts have
found, and has with each run its command, date, commit and core, and the machine's load before and after it.
"""

from pathlib import Path
from typing import Any

import pytest
from fixtures.claim_figures import run_figures, study_figures
from fixtures.measured_commands import finished, provenance
from fixtures.measuring import kept_figures, write_lines

from specdec.analysis.read.runs import Run
from specdec.analysis.research import committed
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


def record(name: str, run: Run, found: dict[str, Any]) -> None:
    """Write the entry into the file, in the place of an earlier one of this name."""
    entry = {"run": name, **provenance(run), "model": run.params["target.model"], **found}
    order = [*RUNS, *STUDIES]
    others = [one for one in kept_figures(committed.CLAIMS) if one["run"] != name]
    rows = sorted([*others, entry], key=lambda one: order.index(one["run"]))
    environment = run.environment()
    about = {"date": entry["date"], "cpu": environment["cpu"], "versions": environment["versions"]}
    write_lines(committed.CLAIMS, about, figures=rows)


def run_of(name: str, prompts: int, tokens: int, *overrides: str) -> Run:
    """Return the run of this name below `outputs/` of the working folder, made if it has not finished there."""
    chosen = any(each.startswith("prompts=") for each in overrides)
    sizes = (f"prompts.limit={prompts}", f"measurement.max_new_tokens={tokens}")
    every = [*overrides, *([] if chosen else ["prompts=stdlib_code"]), *sizes, *SHARED]
    return finished(Path("outputs/paper_claims", name), every)


@pytest.mark.parametrize("name", RUNS)
def test_a_run(name):
    run = run_of(name, *RUNS[name])
    found = run_figures(run)
    record(name, run, found)
    assert len(found["prompts"]) == RUNS[name][0]


@pytest.mark.parametrize("name", STUDIES)
def test_a_study(name):
    run = run_of(name, *STUDIES[name])
    found = study_figures(name, run)
    record(name, run, found)
    assert found["metrics"]
