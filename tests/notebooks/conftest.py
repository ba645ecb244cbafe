"""A store with real runs that the notebooks can read, on the table target."""

import json
import subprocess
import sys
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class RunStore:
    """What a notebook is told."""

    tracking_uri: str
    experiment: str


PROMPTS = "prompts.tokens=[[0],[1],[2],[0,1],[0,2],[1,0],[1,2],[2,0],[2,1],[0,1,2],[1,2,0],[2,0,1]]"


@pytest.fixture(scope="session")
def run_store(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """The alpha table of two n-gram drafters; and of the overlay's drafters a context n-gram and, newest, the oracle,
    whose acceptance is i.i.d.: the model holds by construction.
    """
    folder = tmp_path_factory.mktemp("store")
    corpus = folder / "corpus.jsonl"
    lines = [[0, 0, 1, 1, 2, 2, 0], [0, 1, 1, 1, 2, 2, 2], [0, 0, 0, 1, 2, 0, 1]]
    corpus.write_text("".join(json.dumps({"ids": line}) + "\n" for line in lines), encoding="utf-8")
    alphas = [
        "-m",
        "+experiment=leviathan_alpha",
        "+debug=tiny",
        "hydra.sweeper.params=null",  # no small model drafts for a table
        "~target.dtype",
        "+drafter=unigram,bigram",
        "sampling.temperature=0.0,1.0",
        f"++drafter.corpus={corpus}",
        "++drafter.field=ids",  # ++ because the sweep itself has no drafter, its cells have
        "++drafter.cache_dir=null",
    ]
    overlay = [
        "+experiment=notebooks",
        "+debug=tiny",
        "hydra.sweeper.params={+drafter: 'ngram,oracle'}",  # as above
        "~target.dtype",
        "measurement.gammas=[1,2,3,4,6,8]",
        "measurement.max_new_tokens=64",
        PROMPTS,
    ]
    studies = [
        "-m",
        "+study=grid,phase_transition,equal_budget",
        "+drafter=ngram",
        "structure=rows",
        "structure.k=2",
        "structure.w=2",
        "+debug=tiny",
        "++study.calls=1",
        "measurement.gammas=[]",
        "measurement.workers=1",
    ]
    live = ["+experiment=chain_rows_tree", "+debug=tiny", "~target.dtype", "drafter.bigram.cache_dir=null"]
    # The oracle's stays the newest run.
    for arguments in (alphas, studies, live, overlay):
        subprocess.run([sys.executable, "-m", "specdec.run", *arguments], cwd=folder, check=True, timeout=600)
    return RunStore(f"sqlite:///{folder / 'mlflow.db'}", "specdec")
