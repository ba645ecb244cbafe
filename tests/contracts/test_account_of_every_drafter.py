"""The account of a drafter of every kind closes to 1e-9: run, categories and prompts."""

import shutil
from dataclasses import replace
from math import isfinite, prod
from pathlib import Path

import pandas as pd
import pytest
from fixtures.small_parts import composed

from specdec.analysis.account.run_account import account_sums
from specdec.analysis.read.runs import Run, open_folder
from specdec.drafters import drafters
from specdec.plan.plan import plan
from specdec.session.experiment import run_experiment
from specdec.targets import targets

# By what the account reads of a drafter: its kind of replay, drafts of its own length, calls of the target's layers,
# and no drafts at all.
DRAFTERS = ("adaptive", "early_exit", "jacobi", "medusa", "none")
ONE_GAMMA = ("measurement.gammas=[]", "measurement.bootstrap=20", "structure=chain", "structure.gamma=2")
STATES = 3  # of the table target
TEXTS = "prompts.tokens=[[0],[1],[2],[0,1],[1,2],[2,0],[0,2],[1,0]]"


def in_two_categories(folder: Path) -> None:
    """The prompts of a table have one category: every other one gets a second."""
    rounds = pd.read_parquet(folder / "rounds.parquet")
    prompts = sorted(set(rounds["prompt"]))
    rounds["category"] = rounds["prompt"].map({prompt: f"c{i % 2}" for i, prompt in enumerate(prompts)})
    rounds.to_parquet(folder / "rounds.parquet", index=False)


def measured_speedup(rounds: pd.DataFrame, gamma: int) -> float:
    """From the rounds, without the account."""
    baseline, arm = rounds[rounds["method"] == "baseline"], rounds[rounds["gamma"] == gamma]
    per_token = baseline["round_s"].sum() / baseline["committed"].sum()
    return per_token / (arm["round_s"].sum() / arm["committed"].sum())


def closes(factors: dict[str, float], speedup: float, rounds: pd.DataFrame, gamma: int) -> None:
    """The factors multiply to the speedup, and that is the rounds'."""
    assert all(isfinite(factor) and factor > 0 for factor in factors.values())
    assert prod(factors.values()) == pytest.approx(speedup, abs=1e-9, rel=1e-9)
    assert speedup == pytest.approx(measured_speedup(rounds, gamma), rel=1e-9)


def closes_everywhere(made: Run) -> None:
    """The account that was logged is made again; it closes, and so does that of each category and prompt."""
    logged = made.account()
    for gamma, item in logged["gammas"].items():
        rebuilt = account_sums(made).work.sums(int(gamma), made.replicates).account()
        assert rebuilt.alpha == pytest.approx(logged["alpha"], abs=1e-9)
        assert rebuilt.factors == pytest.approx(item["factors"], abs=1e-9, rel=1e-9)
        assert rebuilt.time == pytest.approx(item["time"], abs=1e-9, rel=1e-9)
        for quantity, interval in item["intervals"].items():
            again = vars(rebuilt.intervals[quantity])
            assert again == pytest.approx(interval, abs=1e-9, rel=1e-9, nan_ok=True)
        closes(item["factors"], item["speedup"], made.rounds(), int(gamma))
    in_two_categories(made.fetch("rounds.parquet").parent)
    rounds = made.rounds()
    for by, count in (("category", 2), ("prompt", rounds["prompt"].nunique())):
        groups = account_sums(made).by(by)
        assert len(groups) == count
        for account in groups:
            closes(account.factors, account.speedup, rounds[rounds[by] == account.group], made.primary_gamma)


@pytest.mark.parametrize("name", ["chain", "tree", "oracle"])
def test_the_account_of_a_finished_run_closes(finished_run, tmp_path, name):
    closes_everywhere(open_folder(shutil.copytree(finished_run(name), tmp_path / name)))


@pytest.mark.slow
@pytest.mark.usefixtures("undrawn_pictures", "quick_analysis")
@pytest.mark.parametrize("name", DRAFTERS)
def test_the_account_closes(drafter_values, group_values, sampling, tiny_llama, tmp_path, name):
    target = targets.build(group_values("target", "table"), sampling=sampling())
    words = [f"+drafter={name}", "+debug=tiny", "tracking.enabled=false", TEXTS, *ONE_GAMMA]
    if drafters.get(name).capabilities.runs_target:
        tiny_llama(STATES).save_pretrained(tmp_path / "model")
        words += ["target=causal", f"target.model={tmp_path / 'model'}", "target.compile=false"]
    config = replace(composed(*words), drafter=drafter_values(name, STATES, target))
    run_experiment(plan(config), tmp_path / "run")
    closes_everywhere(open_folder(tmp_path / "run"))
