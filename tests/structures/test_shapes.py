"""Rows, trees by their expansion, and the room that a dynamic tree asks for: topologies counted out by hand, levels and
limits. `test_siblings.py` has the drafts that fill them.
"""

from itertools import product

import pytest
from fixtures.drafting import expansion
from fixtures.refusals import refused

from specdec.structures import structures


@pytest.fixture
def build(group_values):
    return lambda name, **changes: structures.build(group_values("structure", name, **changes))


def test_rows_are_chains_that_share_the_root(build):
    rows = build("rows", k=3, w=2)
    assert rows.tree.parents == (-1, 0, -1, 2, -1, 4)
    assert (rows.gamma, rows.nodes, rows.branches) == (2, 6, 3)


def test_the_budget_counts_the_root_of_every_row(build):
    assert build("rows", k=4, w=4, budget=20).nodes == 16
    with refused(r"structure\.k=4 structure\.w=4: .* = 20 tokens .*structure\.budget=19"):
        build("rows", k=4, w=4, budget=19)


def test_every_node_of_a_level_has_the_same_number_of_children():
    shape = expansion(2, 3, 1)
    assert shape.tree.parents == (-1, -1, 0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 6, 7)
    assert (shape.nodes, shape.gamma, shape.branches) == (len(shape.tree), shape.tree.depth, len(shape.tree.leaves))
    assert shape.label == "expansion 2 x 3 x 1, 14 nodes" and shape.name == "tree" and shape.rows is None
    assert expansion(1, 1).tree.is_chain


def test_levels_are_cut_and_come_back():
    shape = expansion(2, 2)
    assert shape.clamped(1).tree.parents == (-1, -1) and shape.clamped(5) is shape
    assert shape.clamped(1).resized(2).tree == shape.resized(9).tree == shape.tree
    empty = shape.resized(0)
    assert (empty.nodes, empty.gamma, empty.branches, len(empty.tree)) == (0, 0, 1, 0)


def test_bad_expansions_are_one_sentence():
    for values, said in (
        ({"widths": [4, 4], "nodes": 19}, r"structure\.widths=\[4, 4\]: the tree has 20 nodes"),
        ({"widths": [], "nodes": 9}, r"structure\.widths=\[\]"),
        ({"widths": [2, 0], "nodes": 9}, r"structure\.widths\.1=0"),
        ({"widths": [2]}, r"structure\.nodes"),
    ):
        with refused(said):
            structures.build({"name": "expansion", **values})


def test_a_dynamic_tree_has_the_most_nodes_and_the_deepest_level(build):
    for sizes, nodes, gamma in (
        ({"nodes": 6, "depth": 3, "branching": 2, "beam": 2}, 6, 3),
        ({"nodes": 50, "depth": 3, "branching": 2, "beam": 2}, 2 + 4 + 4, 3),  # all that is drafted
        ({"nodes": 50, "depth": 2, "branching": 3, "beam": 9}, 3 + 9, 2),
        ({"nodes": 2, "depth": 5, "branching": 4, "beam": 1}, 2, 2),  # no deeper than there are nodes
        ({"nodes": 4, "depth": 4, "branching": 1, "beam": 3}, 4, 4),  # a chain
    ):
        shape = build("dynamic", **sizes)
        assert (shape.nodes, shape.gamma) == (nodes, gamma) == (len(shape.tree), shape.tree.depth)
        assert max(map(len, shape.tree.children)) <= sizes["branching"]
        for level in range(1, gamma):
            expanded = {shape.tree.parents[node] for node, depth in enumerate(shape.tree.depths) if depth == level + 1}
            assert len(expanded) <= sizes["beam"]


def test_resized_changes_the_depth_alone(build):
    shape = build("dynamic", nodes=12, depth=4, branching=3, beam=2)
    assert (shape.resized(2).gamma, shape.resized(2).nodes) == (2, 3 + 6)
    assert shape.resized(6).gamma == 6 and shape.resized(2).resized(4).tree == shape.tree
    assert shape.resized(0).nodes == 0 and len(shape.resized(0).tree) == 0 and shape.resized(0).branches == 1
    assert shape.clamped(4) is shape and shape.label == "dynamic of 12 nodes, depth 4"


SIZES = [*product(["dynamic"], ["nodes", "depth", "branching", "beam"]), *product(["rows"], ["k", "w", "budget"])]


def test_sizes_below_one_and_other_things_are_refused(build):
    for (name, key), value in product(SIZES, (0, 1.5, "many", None)):
        with refused(rf"^Bad value structure\.{key}="):
            build(name, **{key: value})
