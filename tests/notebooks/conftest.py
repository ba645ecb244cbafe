"""A store with a run that the notebooks can read."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from specdec.analysis.fit import hazards, position_tokens
from specdec.analysis.summary import summarise
from specdec.theory.capped_geometric import tokens_per_round
from specdec.theory.speedup import speedup

GAMMAS = (1, 2, 3, 4, 6, 8)
T1, STEP = 2e-3, 1e-4  # seconds: one target call, one drafter step
KEYS = ["cell", "method", "gamma", "repeat", "prompt", "category"]


@dataclass(frozen=True)
class RunStore:
    """What a notebook is told."""

    tracking_uri: str
    experiment: str


@pytest.fixture(scope="session")
def run_store(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """A store with one finished run of a drafter whose acceptance is i.i.d.: the model holds by construction."""
    folder = tmp_path_factory.mktemp("store")
    store = RunStore(f"sqlite:///{folder / 'mlflow.db'}", "specdec")
    _log(store, _simulated(folder / "run"), folder)
    return store


def _simulated(folder: Path, prompts: int = 12, tokens: int = 64, alpha: float = 0.7) -> dict[str, Any]:
    """An output folder as a run leaves it; returns its metrics and curves."""
    folder.mkdir()
    generator = np.random.default_rng(0)
    agreement = {f"prompt/{i}": generator.random(tokens) < alpha for i in range(prompts)}
    rows = [
        row
        for prompt, bits in agreement.items()
        for gamma in (0, *GAMMAS)
        for row in _rounds(prompt, bits, gamma, generator)
    ]
    rounds = pd.DataFrame(rows)
    generations = (
        rounds.groupby(KEYS, as_index=False)
        .agg(tokens=("committed", "sum"), rounds=("round", "size"), decode_s=("round_s", "sum"))
        .assign(prefill_s=0.01, finish="limit", flagged=False, text="")
    )
    c = STEP / T1
    summary = summarise(rounds, generations, {"t1_s": T1, "c": c}, primary_gamma=4, replicates=500)
    curves: dict[str, dict[int, float]] = {}
    for gamma, arm in summary.arms.items():
        own = rounds[rounds["gamma"] == gamma]
        values = {
            "capped_geometric": float(tokens_per_round(summary.alpha, gamma)),
            "position": position_tokens(own, hazards(own)),
            "replay": len(agreement) * tokens / len(own),  # greedy: the replay of these very bits
            "measured": arm.metrics["tokens_per_round"],
        }
        for name, value in values.items():
            curves.setdefault(f"curve.{name}", {})[gamma] = value
        curves.setdefault("curve.speedup.measured", {})[gamma] = arm.metrics["speedup"]
        expected = float(speedup(summary.alpha, gamma, c))
        curves.setdefault("curve.speedup.capped_geometric", {})[gamma] = expected
    account = summary.arms[4].account
    rounds.to_parquet(folder / "rounds.parquet", index=False)
    generations.to_json(folder / "generations.jsonl", orient="records", lines=True)
    files = {
        "account.json": {"alpha": summary.alpha, "gammas": {"4": {"factors": account.factors}}},
        "calibration.json": {"t1_s": T1, "draft_step_s": STEP},
        "environment.json": {"cpu": {"model": "simulated"}, "model": {"dtype": "float64"}},
    }
    for name, value in files.items():
        (folder / name).write_text(json.dumps(value), encoding="utf-8")
    return {"folder": folder, "metrics": summary.arms[4].metrics, "curves": curves}


def _rounds(
    prompt: str, bits: np.ndarray, gamma: int, generator: np.random.Generator
) -> Iterator[dict[str, Any]]:
    """Rounds of a greedy drafter that agrees with the text where `bits` is true; gamma 0 is the baseline."""
    position = index = 0
    while position < len(bits):
        left = len(bits) - position
        offered = min(gamma, left - 1)
        misses = np.flatnonzero(~bits[position : position + offered])
        accepted = int(misses[0]) if len(misses) else offered
        draft, verify = STEP * offered, T1 * (1 + 0.02 * offered + 0.01 * generator.random())
        yield {
            "cell": "simulated",
            "method": "baseline" if gamma == 0 else "simulated",
            "gamma": gamma,
            "repeat": 0,
            "prompt": prompt,
            "category": "code",
            "round": index,
            "context": 10 + position,
            "offered_nodes": offered,
            "offered": offered,
            "accepted": accepted,
            "committed": accepted + 1,
            "rejected": accepted < offered,
            "truncation": "limit" if accepted + 1 == left else "",
            "tokens_left": left,
            "source": "simulated" if offered else "",
            "rank": 0,
            "beta": [],
            "draft_s": draft,
            "verify_s": verify,
            "accept_s": 2e-5,
            "commit_s": 2e-5,
            "round_s": draft + verify + 5e-5,
        }
        position, index = position + accepted + 1, index + 1


def _log(store: RunStore, run: dict[str, Any], folder: Path) -> None:
    """As DESIGN 5 names it: one main run, and a child per curve that must not be taken for a run."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=store.tracking_uri)
    experiment = client.create_experiment(store.experiment, (folder / "artifacts").as_uri())
    main = client.create_run(experiment, run_name="simulated", tags={"specdec.role": "main"}).info.run_id
    params = {"drafter.name": "simulated", "target.model": "none", "structure.gamma": 4}
    for name, value in params.items():
        client.log_param(main, name, value)
    for name, value in run["metrics"].items():
        client.log_metric(main, name, value)
    child = client.create_run(
        experiment, tags={"specdec.role": "curve", "mlflow.parentRunId": main}
    ).info.run_id
    for key, points in run["curves"].items():
        for gamma, value in points.items():
            client.log_metric(main, key, value, step=gamma)
            client.log_metric(child, "curve.tokens_per_round", value, step=gamma)
    client.log_artifacts(main, str(run["folder"]))
    for run_id in (main, child):
        client.set_terminated(run_id)
