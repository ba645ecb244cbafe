"""Trees of heads from their counts: paired gains, the words, and that the tree that comes along was found."""

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from oracles.path_trees import tree_of_paths

from specdec.analysis.research import heads_tree
from specdec.analysis.research.heads_ablation import difference
from specdec.analysis.research.heads_tree import ACCURACY, CHANCES, DRAWN, JOINT, OWN
from specdec.config import config_dir
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
            entry(DRAWN, 8, 1.5), entry(CHANCES, 8, 1.55), entry(JOINT, 8, 1.5 + gain), entry(OWN, 8, 1.5 + 2 * gain),
            entry("product 4x3x2", 40, 1.7), entry(f"{CHANCES} 40", 40, 1.8),
            entry("product 4x4x4x4", 340, 1.9 + dense), entry(f"{CHANCES} 340", 340, 2.0),
            entry(f"{CHANCES} 64", 64, 1.9),
            {"heads": heads, "shape": ACCURACY, "searched_on": ["a", "b"], "accuracy": [[0.5, 0.1]] * 4,
             "paths": {"": 1, "0 2": 2}},
        ]  # fmt: skip

    return make


def test_the_words_follow_from_the_counts(rows, tmp_path):
    path = tmp_path / "heads_tree.json"
    path.write_text(json.dumps({"figures": rows(0.1) + rows(-0.05, heads="grounded")}))
    (section,) = heads_tree.tree_sections(path)
    medusa, _, grounded = section.text[0].partition("With grounded heads")
    assert "With medusa heads the tree of 8 nodes that was found jointly for all heads" in medusa
    gains = [[float(number) for number in re.findall(r"([-+]\d\.\d+) \(", text)] for text in (medusa, grounded)]
    assert gains[0] == pytest.approx([0.1, 0.05, 0.2], abs=0.02)  # jointly, by chances, for these heads alone
    assert gains[1] == pytest.approx([-0.05, 0.05, -0.1], abs=0.02)
    assert heads_tree.searched_paths(rows()) == {"medusa": [(), (0, 2), (0, 2)]}
    assert "Both count along 2 prompts; the trees are judged on 20 prompts" in section.text[1]
    # The best tree of 64 nodes beside the product of 340, not beside the searched tree of 340.
    assert "the best tree of 64 nodes" in section.text[2] and "-0.0" in section.text[2]
    assert "evaluate 5.2 times as many tokens" in section.text[2]
    ((_, table),) = section.tables
    beyond = table[table["heads"] == "medusa"].set_index("tree")["beyond the one by chances"]
    assert beyond[DRAWN].startswith("-0.") and beyond["product 4x3x2"].startswith("-0.")
    assert beyond[CHANCES] == beyond[f"{CHANCES} 64"] == ""


def test_without_a_file_the_section_says_what_makes_one(tmp_path):
    (section,) = heads_tree.tree_sections(tmp_path / "none.json")
    assert "test_heads_tree" in section.text[0]


def test_the_trees_that_come_along_are_those_that_were_judged():
    """`structure=heads_medusa` is the best tree for the rank paths in the results, `structure=heads` the drawn one."""
    found = heads_tree.load_trees()
    paths = heads_tree.searched_paths(found)
    judged = {(each["heads"], each["shape"]): each["parents"] for each in heads_tree.trees_of(found)}
    assert shipped("heads_medusa") == judged["medusa", OWN] == list(tree_of_paths(paths["medusa"], 8).parents)
    assert shipped("heads") == judged["grounded", DRAWN] == judged["medusa", DRAWN]
    both = list(tree_of_paths(paths["medusa"] + paths["grounded"], 8).parents)
    assert judged["medusa", JOINT] == judged["grounded", JOINT] == both
    chances = list(best_tree(heads_tree.searched_accuracy(found), 8, 4).parents)
    assert judged["medusa", CHANCES] == judged["grounded", CHANCES] == chances
    # The YAMLs `conf/structure/heads.yaml` and `heads_medusa.yaml`.
    by_kind = {
        heads: {each["shape"]: each for each in heads_tree.trees_of(heads_tree.load_trees(), heads)}
        for heads in ("medusa", "grounded")
    }
    own = {heads: difference(trees[OWN], trees[DRAWN]) for heads, trees in by_kind.items()}
    assert f"{own['medusa']:.3f}" == "0.091 (0.058 to 0.122)"
    assert f"{own['grounded']:.3f}" == "-0.014 (-0.036 to 0.004)"
    assert difference(by_kind["grounded"][JOINT], by_kind["grounded"][DRAWN]).low < 0


def shipped(name: str) -> list[int]:
    with initialize_config_dir(config_dir(), version_base="1.3"):
        values = compose("config", overrides=[f"structure={name}"]).structure
    return list(structures.build(OmegaConf.to_container(values)).tree.parents)
