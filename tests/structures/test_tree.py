"""The tree structure: what it is made of, its sizes, and what is said about a bad one."""

import re

import pytest
import yaml
from fixtures.refusals import refused

from specdec.records import Tree
from specdec.structures import structures
from specdec.structures.tree import TokenTree, load_tree, save_tree
from specdec.theory.trees import best_tree, expected_tokens

FALLING = [0.6, 0.2, 0.1, 0.05]
COMB = [-1, -1, 0, 0, 2, 2]  # two children of the root, then two of each level's first node


@pytest.fixture
def build(group_values):
    """`build(nodes=4)`: the tree of its YAML with some values changed."""

    def make(**changes) -> TokenTree:
        return structures.build(group_values("structure", "tree", **changes))

    return make


def test_the_yaml_builds_the_best_tree_for_its_accuracy(build, group_values):
    values, tree = group_values("structure", "tree"), build()
    best = best_tree(values["accuracy"], values["nodes"], values["depth"])
    assert (tree.tree.parents, tree.tree.ranks) == (best.parents, best.ranks)
    assert (tree.nodes, tree.gamma) == (values["nodes"], values["depth"])
    assert tree.branches == len(tree.tree.leaves) > 1


def test_accuracy_may_differ_by_depth_and_rise_with_rank(build):
    heads = [[0.5, 0.2], [0.3], [0.2]]
    tree = build(accuracy=heads, nodes=20)
    assert tree.tree.parents == (-1, -1, 0, 1, 2, 3) and tree.gamma == 3  # all that these heads can fill
    rising = build(accuracy=[0.1, 0.5, 0.0, 0.4], nodes=5)
    assert rising.tree.parents == (-1, -1, -1, -1, 1)


def test_nodes_and_depth_limit_a_built_tree(build):
    assert build(accuracy=FALLING, nodes=7, depth=9).nodes == 7
    flat = build(accuracy=FALLING, nodes=7, depth=2)
    assert flat.gamma == 2 and expected_tokens(flat.tree.parents, flat.tree.ranks, FALLING) == pytest.approx(2.56)


def test_given_parents_and_a_file_are_the_same_tree(build, tmp_path):
    given = build(parents=COMB)
    assert given.tree.parents == tuple(COMB) and given.gamma == 3
    file = tmp_path / "kept" / "comb.yaml"
    save_tree(file, given.tree.parents)
    assert yaml.safe_load(file.read_text())["ranks"] == [0, 1, 0, 1, 0, 1]
    assert build(file=str(file)).tree == given.tree
    file.write_text(yaml.safe_dump({"parents": COMB}))  # ranks are the order of siblings
    assert load_tree(file) == given.tree


@pytest.mark.parametrize("depth", range(4))
def test_resized_drops_what_is_deeper(build, depth):
    for tree in (build(parents=COMB), build(accuracy=FALLING, nodes=20, depth=6)):
        small = tree.resized(depth)
        kept = [node for node, level in enumerate(tree.tree.depths) if level <= depth]
        assert small.gamma == depth and small.nodes == len(kept)
        assert small.tree.parents == tuple(tree.tree.parents[node] for node in kept)  # level order: no renumbering


def test_resized_renumbers_where_levels_are_mixed(build):
    small = build(parents=[-1, 0, 1, 0, -1, 4, 5]).resized(2)  # depth first: 0 1 2 | 3 | 4 5 6
    assert small.tree.parents == (-1, 0, 0, -1, 3)


def test_a_built_tree_can_be_deeper_with_the_same_nodes(build):
    tree = build(accuracy=FALLING, nodes=12, depth=2)
    deep = tree.resized(4)
    best = best_tree(FALLING, 12, 4)
    assert (deep.tree.parents, deep.gamma, deep.nodes) == (best.parents, 4, 12)
    assert tree.resized(50).gamma == Tree(best_tree(FALLING, 12).parents).depth < 12  # more depth does not pay
    assert build(accuracy=[[0.5, 0.1], [0.4]], nodes=12, depth=1).resized(9).gamma == 2  # no accuracy below


def test_sizes_do_not_depend_on_the_way_there(build):
    tree = build(accuracy=FALLING, nodes=12, depth=3)
    for depth in range(8):
        for between in (0, 2, 6):
            assert tree.resized(between).resized(depth).tree is tree.resized(depth).tree
    assert tree.clamped(3) is tree and tree.clamped(2).gamma == 2


def test_bad_values_are_answered_with_their_key(build):
    for changes, sentence in (
        ({"parents": [-1, 0], "file": "x.yaml"}, "structure.file and structure.parents each say"),
        ({"accuracy": None}, "has no tree: set structure.accuracy, structure.parents or structure.file"),
        ({"parents": []}, "structure.parents: parents should be a list of whole numbers"),
        ({"parents": [-1, 1, 0]}, "structure.parents: node 1 has parent 1: parents must precede"),
        ({"parents": [-1, "a"]}, "structure.parents.1"),
        ({"parents": COMB, "nodes": 5}, "has 6 nodes, more than structure.nodes=5"),
        ({"parents": COMB, "depth": 2}, "is 3 deep, more than structure.depth=2"),
        ({"accuracy": [0.5, 1.2]}, "Bad value structure.accuracy=[0.5, 1.2]: it should list numbers from 0 to 1"),
        ({"accuracy": [0.5, "a"]}, "numbers from 0 to 1"),
        ({"accuracy": []}, "numbers from 0 to 1"),
        ({"accuracy": [[0.5], [0.4, 2]]}, "Bad value structure.accuracy.1=[0.4, 2]"),
        ({"accuracy": [[0.5], []]}, "Bad value structure.accuracy.1=[]"),
        ({"accuracy": [[0.5], 0.4]}, "or such a list for each depth"),
        ({"accuracy": [0.6, 0.8, 0.9]}, "the ranks sum to 2.3; give each rank's own chance"),
        ({"accuracy": [0.0, 0.0]}, "structure.accuracy makes an empty tree"),
        ({"nodes": 0}, "structure.nodes=0"),
        ({"depth": 0}, "structure.depth=0"),
        ({"gamma": 4}, "Unknown key structure.gamma"),
    ):
        with refused(re.escape(sentence)):
            build(**changes)


def test_bad_files_are_answered_with_their_name(build, tmp_path):
    for text, sentence in (
        ("", "is empty"),
        ("parents: [-1, 0", "is not YAML text"),
        ("parents: 2001-99-99", "is not YAML text"),
        ("[-1, 0]", "is not a tree: it should hold"),
        ("parents: [-1]\nnodes: 3", "is not a tree: it should hold"),
        ("parents: 3", "parents should be a list of whole numbers"),
        ("parents: [-1, 0.0]", "parents should be a list of whole numbers"),
        ("parents: [-1, 2, 0]", "node 1 has parent 2: parents must precede their children"),
        ("parents: [-1, -1]\nranks: [0]", "ranks should be a list of 2 whole numbers"),
        ("parents: [-1, -1]\nranks: [0, 2]", "node 1 has rank 2 where 1 is due"),
    ):
        file = tmp_path / "tree.yaml"
        file.write_text(text)
        with refused(re.escape(str(file)) + ".*" + re.escape(sentence)):
            build(file=str(file))
    save_tree(file, COMB)
    with refused("tree.yaml has 6 nodes, more than structure.nodes=4"):
        build(file=str(file), nodes=4)
    with refused("node 0 has parent 0"):
        save_tree(file, [0])
    assert load_tree(file).parents == tuple(COMB), "no bad tree is saved"


@pytest.mark.slow
def test_files_that_cannot_be_read(build, tmp_path):
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00\x81")
    (tmp_path / "deep.yaml").write_text("[" * 1500)
    for name, sentence in (
        ("nowhere.yaml", "does not exist"),
        ("", "cannot be read: Is a directory"),
        ("binary.yaml", "is not YAML text"),
        ("deep.yaml", "is not YAML text"),
    ):
        with refused(f"{name} {sentence}"):
            build(file=str(tmp_path / name))
