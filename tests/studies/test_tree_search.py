"""Study `tree_search`: accuracies are those of live rounds, trees are kept and decoded as predicted, and bad input."""

import json

import pytest
from fixtures.drafting import shaken

from specdec.structures import structures
from specdec.structures.tree import load_tree
from specdec.text.streams import read_streams
from specdec.theory.trees import best_tree, expected_tokens

SMALL = (
    *("study.budgets=[2,6]", "study.depth=3", "study.ranks=4", "study.branching=3", "study.beam=3"),
    *("study.calls=2", "study.contexts=[8]", "study.probe_tokens=8", "study.repeats=2"),
)


@pytest.fixture
def drafted(tiny_target, tiny_llama, tmp_path):
    """Overrides: the tiny target, drafted for by itself with other weights here and there."""
    shaken(tiny_llama(12, context=256), 0.05, seed=3).save_pretrained(tmp_path / "drafter")
    return (*tiny_target[:-1], "drafter=small_model", f"drafter.model={tmp_path / 'drafter'}")


@pytest.mark.slow
def test_trees_are_built_chosen_kept_and_decoded(study, drafted, tmp_path):
    found, tables = study("tree_search", *drafted, *SMALL)
    accuracy, arms, live = tables["accuracy"], tables["arms"].set_index("arm"), tables["live"]
    # Trees are the best ones for the accuracies of the first half, and are on disk.
    streams = list(read_streams(tmp_path / "out" / "streams.jsonl").streams)
    assert set(accuracy["prompt"]) == {stream.id for stream in streams[::2]}
    assert set(live["prompt"]) == {stream.id for stream in streams[1::2]}
    counts = accuracy.groupby(["level", "rank"])[["tested", "hits"]].sum()
    assert counts.loc[(1, 0), "hits"] > 0 and (counts["hits"] < counts["tested"]).all()
    chances = [
        [(counts.loc[(level, rank), "hits"] + 1 / 5) / (counts.loc[(level, rank), "tested"] + 1) for rank in range(4)]
        for level in (1, 2, 3)
    ]
    for n in (2, 6):
        kept = load_tree(tmp_path / "out" / "trees" / f"tree_{n}.yaml")
        row = arms.loc[f"tree {n}"]
        assert row["tokens"] == pytest.approx(expected_tokens(kept.parents, kept.ranks, chances))
        assert kept.parents == best_tree(chances, n, kept.depth).parents  # of 4 nodes where it is flat
        assert len(kept) == row["nodes"] <= n and kept.depth == row["depth"]
    assert arms.loc["chain 3", "tokens"] == pytest.approx(1 + chances[0][0] * (1 + chances[1][0] * (1 + chances[2][0])))
    rates = arms["tokens"] / arms["seconds"]
    best = rates["chosen"] if "chosen" in rates else rates["plain"]
    rates = rates[arms["shape"] != "chain"]  # drafted in another way, at another price
    kept = (tmp_path / "out" / "trees" / "chosen.yaml").exists()
    assert best == pytest.approx(rates.max()) and kept == ("chosen" in rates)
    # Decoded live: what a structure offers at most, and the same texts.
    assert set(live["arm"]) == set(arms.index) and live.groupby("arm").size().eq(2 * 2).all()
    assert live["identical"].all() and live["seconds"].gt(0).all()
    for arm, row in arms[arms["shape"] != "plain"].iterrows():
        runs = live[live["arm"] == arm]
        assert (runs["nodes"] <= row["nodes"] * runs["rounds"]).all()
        assert structures.build(json.loads(row["structure"])).nodes == row["nodes"]
        tokens = runs["tokens"].sum() / runs["rounds"].sum()
        assert 1 < tokens <= 1 + row["depth"]
    assert live.loc[live["arm"] == "plain", "rounds"].eq(live.loc[live["arm"] == "plain", "tokens"]).all()
    runs = live[live["arm"] == "dynamic 6"]
    tokens = runs["tokens"].sum() / runs["rounds"].sum()
    assert found.metrics["tree_search/dynamic.tokens_per_round.6"] == pytest.approx(tokens)


@pytest.mark.slow
def test_a_drafter_without_confidence_has_no_dynamic_trees(study):
    _, tables = study("tree_search", "drafter=ngram", *SMALL)
    assert set(tables["arms"]["shape"]) - {"chosen"} == {"plain", "chain", "tree"}
    assert tables["draft_times"]["seconds"].gt(0).all() and tables["host_times"]["overhead_s"].gt(0).all()
    drafts = tables["draft_times"]
    trees = drafts[drafts["shape"] == "tree"]
    assert set(zip(trees["nodes"], trees["depth"], strict=True)) >= {(2, 1), (6, 3)}
    assert set(drafts.loc[drafts["shape"] == "chain", "depth"]) == {1, 2, 3}
    assert tables["block_times"]["rows_evaluated"].max() == 7


def test_batches_of_rows_are_refused(refused, tiny_target):
    rows = (*tiny_target[:-1], "target.evaluation=rows")
    refused("tree_search", "drafter=ngram", *rows, *SMALL, words="use target.evaluation=packed")
