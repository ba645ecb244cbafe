"""Studies in this process, from an overlay and overrides, without a store: on an explicit law or a tiny model."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from fixtures.commands import lay_out
from fixtures.small_parts import composed_values, read_group_values

from specdec.analysis.figures import style
from specdec.analysis.read.find_runs import finished_study
from specdec.analysis.sections import Findings
from specdec.config import RunConfig, validated
from specdec.errors import UsageError
from specdec.plan.plan import plan
from specdec.studies.base.run_study import run_study

Tables = dict[str, pd.DataFrame]


@pytest.fixture(scope="session")
def reopened() -> set[str]:
    """Experiments whose pictures were laid out and whose folder was opened again: once is enough."""
    return set()


@pytest.fixture
def study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reopened: set[str]
) -> Callable[..., tuple[Findings, Tables]]:
    """`study("ngrammys_grid", "study.k=[1]", ...)` runs a study in this process; it gives its findings and its tables.

    It also checks that the folder alone gives the same findings, and that they say how many texts loop.
    """
    monkeypatch.chdir(tmp_path)

    def run(experiment: str, *overrides: str, **parts: str) -> tuple[Findings, Tables]:
        small = ("+debug=tiny", "measurement.workers=1", "tracking.enabled=false")
        values = composed_values(f"+experiment={experiment}", *small, *overrides, whole=True)
        values |= {group: read_group_values(group, name) for group, name in parts.items()}
        folder = tmp_path / "out"
        shutil.rmtree(folder, ignore_errors=True)  # a folder is used by one run
        folder.mkdir()
        monkeypatch.setattr(style, "save", lay_out if experiment not in reopened else lambda *_: None)
        found = run_study(plan(validated(RunConfig, values)), folder)
        looping = json.loads((folder / "study.json").read_text())["looping"]
        said = [words for section in found.sections for words in section.text if "falls into a loop" in words]
        assert bool(said) == (looping > 0) and all(f"{looping:.0%} of the prompts" in words for words in said)
        if experiment not in reopened:
            reopened.add(experiment)
            again = finished_study(folder).findings()
            assert again.metrics == found.metrics and again.curves == found.curves
        return found, {path.stem: pd.read_parquet(path) for path in folder.glob("*.parquet")}

    return run


@pytest.fixture
def refused(study: Callable[..., tuple[Findings, Tables]], tmp_path: Path) -> Callable[..., None]:
    """`refused("ngrammys_grid", "study.k=[]", words="study.k")`: one sentence with these words, and no text.

    A part without values of its own is put in place of the experiment's: Hydra would compose anew for each choice.
    """

    def check(experiment: str, *overrides: str, words: str) -> None:
        named = [each.partition("=") for each in overrides]
        groups = {"drafter", "structure", "verifier", "sampling"} - {
            key.partition(".")[0] for key, *_ in named if "." in key
        }
        parts = {group: name for group, _, name in named if group in groups}
        with pytest.raises(UsageError, match=words) as caught:
            study(experiment, *(each for each in overrides if each.partition("=")[0] not in parts), **parts)
        assert "\n" not in str(caught.value) and not (tmp_path / "out" / "streams.jsonl").exists()

    return check


@pytest.fixture
def tiny_target(tiny_llama, tmp_path: Path) -> tuple[str, ...]:
    """Overrides that decode a random float64 Llama of 12 tokens, whose greedy texts wander; the last is for bigrams."""
    folder = tmp_path / "llama"
    tiny_llama(12, context=256).save_pretrained(folder)
    prompts = "[[1,2,3,1,2,3,1],[4,5,6,4,5],[7,8,9,10,7,8],[3,1,4,1,5,9,2,6,5]]"
    model = ("target=causal", f"target.model={folder}", "target.dtype=float64", "target.compile=false")
    return (*model, f"prompts.tokens={prompts}", "measurement.max_new_tokens=40", "drafter.bigram.cache_dir=null")
