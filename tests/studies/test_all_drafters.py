"""Study `all_drafters` on the table target: its arms, its tables, and what may be wrong."""

import math
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from specdec.drafters import drafters
from specdec.drafters.ngram import Ngram
from specdec.structures import structures
from specdec.studies.all_drafters import _facts
from specdec.text import python_sources

ON_A_TABLE = ("ngram", "mixed", "model_bigram")
PROMPTS = "prompts.tokens=[[0,1,2,0,1,2,0],[1,1,2,1,1,2,1],[2,0,2,0,2,0]]"


def only(*names: str) -> tuple[str, ...]:
    left_out = ",".join(name for name in drafters.names() if name not in names)
    changes = "+study.drafters={mixed: {bigram: {cache_dir: null}}, model_bigram: {cache_dir: null}}"
    return (f"study.leave_out=[{left_out}]", changes, "~target.dtype", PROMPTS, "measurement.max_new_tokens=12")


CHOSEN = only(*ON_A_TABLE)


@pytest.mark.slow
def test_every_arm_decodes_every_text(study):
    found, tables = study("all_drafters", *CHOSEN, "study.nodes=3", "study.repeats=2")
    arms, live = tables["arms"], tables["live"]
    assert set(arms["arm"]) == {f"{name}{tail}" for name in ON_A_TABLE for tail in ("", ", chain", ", tree")}
    assert set(live["arm"]) == {*arms["arm"], "baseline"}
    assert (live.groupby("arm").size() == 2 * 3).all()
    assert set(live["outcome"]) == {"same"} and arms["lossless"].all()
    equal = arms[arms["setting"] != "default"]
    assert (equal["nodes"] == 3).all()
    own = arms.set_index("arm")["structure"]
    assert own["mixed"] == "10 rows of 10" and own["ngram"] == "gamma 4"  # the YAML's own
    assert (arms["training_seconds"] == 0).all()
    per_round = live.groupby("arm")[["nodes", "tokens", "rounds"]].sum()
    assert per_round.loc["baseline", "nodes"] == 0
    assert per_round.loc["baseline", "tokens"] == per_round.loc["baseline", "rounds"]
    assert (live["seconds"] >= live["draft_s"] + live["verify_s"]).all()
    mean = per_round.loc["ngram, chain", "tokens"] / per_round.loc["ngram, chain", "rounds"]
    assert found.metrics["all_drafters/ngram.chain.tokens_per_round"] == pytest.approx(mean)
    titles = [section.title for section in found.sections]
    assert titles[0] == "Every drafter in its own structure" and titles[-1] == "The same methods as published"
    assert sum("of 3" in title for title in titles) == 2


@pytest.mark.slow
def test_a_study_out_of_time_decodes_five_prompts_by_every_arm_and_says_what_it_left_out(study):
    """The seed alone says which ones."""
    seven = "prompts.tokens=[[0],[1],[2],[0,1],[1,2],[2,0],[0,2]]"
    limited = (*CHOSEN, seven, "study.shapes=[]", "study.budget_seconds=1e-6", "measurement.max_new_tokens=4")
    found, tables = study("all_drafters", *limited)
    live, skipped = tables["live"], tables["skipped"].set_index("reason")
    assert (live.groupby("arm")["prompt"].nunique() == 5).all() and len(live) == 5 * (len(ON_A_TABLE) + 1)
    assert skipped["count"].to_dict() == {"no time left (study.budget_seconds; null: no bound)": 2}
    assert "Prompts left out, by reason and category: no time left" in " ".join(found.sections[0].text)
    _, again = study("all_drafters", *limited)
    assert list(again["live"]["prompt"].unique()) == list(live["prompt"].unique())


@pytest.mark.slow
def test_a_drafter_that_goes_no_deeper_has_no_chain_of_the_equal_size(study, monkeypatch):
    monkeypatch.setattr(Ngram, "capabilities", replace(Ngram.capabilities, deepest=2))
    _, tables = study("all_drafters", *CHOSEN, "study.nodes=3")
    arms = tables["arms"].set_index("arm")
    assert "ngram, chain" not in arms.index and "model_bigram, chain" in arms.index
    assert arms.loc["ngram", "structure"] == "gamma 2"
    assert (arms.loc[arms["setting"] != "default", "nodes"] == 3).all()


@pytest.mark.slow
def test_whoever_is_not_left_out_decodes_the_pocket_target(study, monkeypatch):
    read = python_sources.read_python_files  # tables are fitted on every fortieth file: on all it takes too long
    monkeypatch.setattr(python_sources, "read_python_files", lambda *where: list(read(*where))[::40])
    model = ("target=causal", "target.compile=false", "prompts=stdlib_code", "prompts.limit=1", "target.dtype=float32")
    few = ("study.shapes=[]", "measurement.max_new_tokens=6", "+study.drafters.layer_skip={evaluations: 4}")
    _, tables = study("all_drafters", *model, *few)
    assert set(tables["live"]["outcome"]) == {"same"} and "mtp" not in set(tables["live"]["arm"])
    heads = tables["live"].query("arm == 'medusa'")[["tokens", "rounds"]].sum()
    assert heads["tokens"] > heads["rounds"]


@pytest.mark.parametrize(
    ("described", "seconds"),
    [
        ({}, 0),  # a look-up
        ({"parameters": 8, "sha256": "target's", "training": {"tokens": 9.0, "seconds": 9.0}}, 0),  # with its weights
        ({"parameters": 8, "sha256": "own", "training": {"tokens": 9.0, "seconds": 3.0}}, 3),
        ({"parameters": 8, "sha256": "own", "training": None}, math.nan),
    ],
)
def test_what_drafts_with_the_targets_weights_needs_no_training(described, seconds):
    can = SimpleNamespace(capabilities=SimpleNamespace(lossless=True), describe=lambda: described)
    target = SimpleNamespace(describe=lambda: {"sha256": "target's"})
    structure = structures.build({"name": "chain", "gamma": 2})
    arm = SimpleNamespace(method="x", drafter=can, verifier=can, target=target, structure=structure)
    facts = _facts(SimpleNamespace(arm=arm, keys={"arm": "x"}))
    assert facts["training_seconds"] == pytest.approx(seconds, nan_ok=True)
    assert facts["training_tokens"] == (0 if seconds == 0 else pytest.approx(seconds * 3, nan_ok=True))


def test_a_drafter_that_cannot_be_made_says_how_it_is_left_out(refused):
    """A table has no embeddings to rank."""
    refused("all_drafters", *only("model_unigram", "ngram"), words=re.escape("study.leave_out=["))
