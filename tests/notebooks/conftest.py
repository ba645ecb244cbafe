"""A store with a real run that the notebooks can read."""

import subprocess
import sys
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class RunStore:
    """What a notebook is told."""

    tracking_uri: str
    experiment: str


@pytest.fixture(scope="session")
def run_store(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """One finished run of the oracle on the table target: acceptance is i.i.d., so the model holds by construction."""
    folder = tmp_path_factory.mktemp("store")
    arguments = [
        "+drafter=oracle",
        "+debug=tiny",
        "drafter.alpha=0.7",
        "measurement.gammas=[1,2,3,4,6,8]",
        "measurement.max_new_tokens=64",
        "prompts.tokens=[[0],[1],[2],[0,1],[0,2],[1,0],[1,2],[2,0],[2,1],[0,1,2],[1,2,0],[2,0,1]]",
    ]
    subprocess.run([sys.executable, "-m", "specdec.run", *arguments], cwd=folder, check=True, timeout=600)
    return RunStore(f"sqlite:///{folder / 'mlflow.db'}", "specdec")
