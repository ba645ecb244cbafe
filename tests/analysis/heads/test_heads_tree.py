"""Trees of heads from their counts: paired gains, the words, and that the tree that comes along was found."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from specdec.analysis.heads import heads_tree
from specdec.analysis.heads.heads_tree import ACCURACY, DRAWN, SEARCHED
from specdec.config import config_dir
from specdec.errors import UsageError
from specdec.structures import structures
from specdec.theory.trees import best_tree

Row = dict[str, Any]
PROMPTS = [f"p{number:02}" for number in range(20)]


@pytest.fixture
def rows() -> Callable[..., list[Row]]:
    """`rows(gain=0.1)`: the entries of one kind of heads; a tree of more nodes has more tokens per round."""

    def make(gain: float = 0.1, dense: float = 0.02, heads: str = "medusa") -> list[Row]:
        generator = np.random.default_rng(0)
        rounds, ease = generator.integers(40, 70, 20), generator.normal(1.0, 0.2, 20)

        def entry(shape: str, nodes: int, rate: float) -> Row:
            tokens = [round(n * rate * e) for n, e in zip(rounds, ease, strict=True)]
            counts = {"prompts": PROMPTS, "tokens": tokens, "rounds": rounds.tolist()}
            return {"heads": heads, "shape": shape, "nodes": nodes, "depth": 4, "parents": [], "by_prompt": counts}

        return [
            entry(DRAWN, 8, 1.5), entry(SEARCHED, 8, 1.5 + gain), entry(f"{SEARCHED}, own", 8, 1.5 + gain),
            entry("product 4x3x2", 40, 1.7), entry(f"{SEARCHED} 40", 40, 1.8),
            entry("product 4x4x4x4", 340, 1.9 + dense), entry(f"{SEARCHED} 340", 340, 2.0),
            entry(f"{SEARCHED} 64", 64, 1.9),
            {"heads": heads, "shape": ACCURACY, "searched_on": ["a", "b"], "accuracy": [[0.5, 0.1]] * 4},
        ]  # fmt: skip

    return make


def test_a_gain_is_paired_by_prompt(rows):
    drawn, found, *_ = rows(0.1)
    gain = heads_tree.gain(found, drawn)
    tokens = [np.sum(each["by_prompt"]["tokens"]) for each in (found, drawn)]
    assert gain.estimate == pytest.approx((tokens[0] - tokens[1]) / np.sum(drawn["by_prompt"]["rounds"]))
    alone = heads_tree.tokens_per_round(found)
    assert 0 < gain.low < gain.high and gain.high - gain.low < 0.2 * (alone.high - alone.low)


def test_the_words_follow_from_the_counts(rows, tmp_path):
    path = tmp_path / "heads_tree.json"
    path.write_text(json.dumps({"figures": rows(0.1) + rows(-0.05, heads="grounded")}))
    (section,) = heads_tree.tree_sections(path)
    assert "With medusa heads the tree of 8 nodes that was found by search" in section.text[0]
    assert "+0.0" in section.text[0] and "-0.0" in section.text[0].partition("With grounded heads")[2]
    assert "counted in the rounds of 2 prompts; the trees are judged on 20 prompts" in section.text[1]
    # The best tree of 64 nodes beside the product of 340, not beside the searched tree of 340.
    assert "the best tree of 64 nodes" in section.text[2] and "-0.0" in section.text[2]
    assert "evaluate 5.2 times as many tokens" in section.text[2]
    ((_, table),) = section.tables
    beyond = table[table["heads"] == "medusa"].set_index("tree")["beyond the searched"]
    assert beyond[DRAWN].startswith("-0.") and beyond["product 4x3x2"].startswith("-0.")
    assert beyond[SEARCHED] == beyond[f"{SEARCHED} 64"] == ""


@pytest.mark.parametrize("content", [None, "{}", "[1]", '{"figures": [{"heads": "x", "shape": "y"}]}'])
def test_files_without_trees_are_answered_with_what_makes_them(tmp_path, content):
    path = tmp_path / "heads_tree.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UsageError, match="test_heads_tree"):
        heads_tree.load_trees(path)
    (section,) = heads_tree.tree_sections(path)
    assert "test_heads_tree" in section.text[0]


def test_the_tree_that_comes_along_is_the_one_that_was_found():
    """`structure=heads_searched` is built from the accuracies in the results; what was judged is theory's best tree."""
    found = heads_tree.load_trees()
    shipped = yaml.safe_load(Path(config_dir(), "structure", "heads_searched.yaml").read_text(encoding="utf-8"))
    accuracy = heads_tree.searched_accuracy(found)
    assert shipped["accuracy"] == accuracy
    best = best_tree(accuracy, shipped["nodes"], shipped["depth"])
    judged = [each for each in heads_tree.trees_of(found) if each["shape"] == SEARCHED]
    assert len(judged) == 2 and all(each["parents"] == list(best.parents) for each in judged)
    values = {"name": "tree", "file": None, "parents": None} | {key: shipped[key] for key in ("nodes", "depth")}
    assert structures.build(values | {"accuracy": accuracy}).tree.parents == best.parents
