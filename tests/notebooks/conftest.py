"""A store with real runs that the notebooks can read, on the table target."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from filelock import FileLock
from fixtures.commands import run_in

from specdec.analysis.figures import style
from specdec.config import config_dir
from specdec.drafters import drafters
from specdec.published.network_files import TRAINED_HEADS
from specdec.targets.base import targets


@dataclass(frozen=True)
class RunStore:
    """The parameters that a notebook is given."""

    tracking_uri: str
    experiment: str


HEADS = ("medusa", "grounded")
PROMPTS = "prompts.tokens=[[0],[1],[2],[0,1],[0,2],[1,0],[1,2],[2,0],[2,1],[0,1,2],[1,2,0],[2,0,1]]"


@pytest.fixture(scope="session")
def run_store(
    tmp_path_factory: pytest.TempPathFactory,
    random_heads: Callable[..., Any],
    sampling: Callable[..., Any],
    empty_database: Path,
) -> RunStore:
    """Make a store with every kind of run that notebooks read, once for all workers.

    It holds the alpha table of two n-gram drafters, studies, random heads of both kinds, and two drafters of the
    overlay `notebooks`: a context n-gram and, newest, the oracle, whose acceptance is i.i.d. by construction.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "notebook_store"
    store = RunStore(f"sqlite:///{folder / 'mlflow.db'}", "specdec")
    folder.mkdir(exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if not (folder / "made").exists():
            shutil.copy(empty_database, folder)
            make_runs(folder, random_heads, sampling)
            (folder / "made").touch()
    return store


def make_runs(folder: Path, random_heads: Callable[..., Any], sampling: Callable[..., Any]) -> None:
    corpus = folder / "corpus.jsonl"
    few = "measurement.bootstrap=40"
    lines = [[0, 0, 1, 1, 2, 2, 0], [0, 1, 1, 1, 2, 2, 2], [0, 0, 0, 1, 2, 0, 1]]
    corpus.write_text("".join(json.dumps({"ids": line}) + "\n" for line in lines), encoding="utf-8")
    # A table has no small model to draft for it, so the overlays' own sweeps are replaced; `drafter` is a cell's key.
    alphas = [
        *("-m", "+experiment=leviathan_alpha", "+debug=tiny", "hydra.sweeper.params=null", "~target.dtype"),
        *("+drafter=unigram,bigram", "sampling.temperature=0.0,1.0", f"++drafter.corpus={corpus}"),
        *("++drafter.field=ids", "++drafter.cache_dir=null"),
    ]
    overlay = [
        *("-m", "+experiment=notebooks", "+debug=tiny", "hydra.sweeper.params=null", "~target.dtype"),
        *("+notebook=ngram,oracle", "measurement.gammas=[1,2,3,4,6,8]", "measurement.max_new_tokens=64", PROMPTS),
    ]
    studies = [
        *("-m", "+study=grid,phase_transition,equal_budget", "+debug=tiny", "++study.calls=1"),
        *("+drafter=ngram", "structure=rows", "structure.k=2", "structure.w=2"),
        *("measurement.gammas=[]", "measurement.workers=1"),
    ]
    live = ["+experiment=chain_rows_tree", "+debug=tiny", "~target.dtype", "drafter.bigram.cache_dir=null"]
    values = yaml.safe_load(Path(config_dir(), "target", "table.yaml").read_text(encoding="utf-8"))
    target = targets.build(values, sampling=sampling(temperature=0.0))
    for name in HEADS:
        some = random_heads(target, count=4, grounded=name == "grounded", output="shared")
        TRAINED_HEADS.write(some, folder / f"{name}.safetensors", target.hidden.identity, {})
    heads = [
        [
            *("+experiment=heads", "+debug=tiny", "hydra.mode=RUN", "hydra.sweeper.params=null", "~target.dtype"),
            *(f"+drafter={name}", f"drafter.model={name}.safetensors", PROMPTS),
        ]
        for name in HEADS
    ]
    everything = [
        *("+experiment=all_drafters", "+debug=tiny", "~target.dtype", PROMPTS, "measurement.max_new_tokens=8"),
        f"study.leave_out=[{','.join(name for name in drafters.names() if name not in ('ngram', 'model_bigram'))}]",
        "+study.drafters.model_bigram={cache_dir: null}",
    ]
    of_heads = [
        *("-m", "+study=typical_acceptance,tree_search", "+debug=tiny", "measurement.gammas=[]", PROMPTS),
        *("+drafter=medusa", "++drafter.model=medusa.safetensors", "++drafter.drafts=greedy"),
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(style, "svg", lambda *_, **__: "<svg></svg>")
        for arguments in (alphas, studies, live, *heads, of_heads, everything, overlay):
            run_in(folder, *arguments, few)
