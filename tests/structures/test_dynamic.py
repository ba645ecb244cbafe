"""The room that a dynamic tree asks for; `test_siblings.py` has the drafts that fill it."""

from itertools import product

import pytest
from fixtures.refusals import refused

from specdec.structures import structures


@pytest.fixture
def build(group_values):
    return lambda **changes: structures.build(group_values("structure", "dynamic", **changes))


def test_the_tree_has_the_most_nodes_and_the_deepest_level(build):
    for sizes, nodes, gamma in (
        ({"nodes": 6, "depth": 3, "branching": 2, "beam": 2}, 6, 3),
        ({"nodes": 50, "depth": 3, "branching": 2, "beam": 2}, 2 + 4 + 4, 3),  # all that is drafted
        ({"nodes": 50, "depth": 2, "branching": 3, "beam": 9}, 3 + 9, 2),
        ({"nodes": 2, "depth": 5, "branching": 4, "beam": 1}, 2, 2),  # no deeper than there are nodes
        ({"nodes": 4, "depth": 4, "branching": 1, "beam": 3}, 4, 4),  # a chain
    ):
        shape = build(**sizes)
        assert (shape.nodes, shape.gamma) == (nodes, gamma) == (len(shape.tree), shape.tree.depth)
        assert max(map(len, shape.tree.children)) <= sizes["branching"]
        for level in range(1, gamma):
            expanded = {shape.tree.parents[node] for node, depth in enumerate(shape.tree.depths) if depth == level + 1}
            assert len(expanded) <= sizes["beam"]


def test_resized_changes_the_depth_alone(build):
    shape = build(nodes=12, depth=4, branching=3, beam=2)
    assert (shape.resized(2).gamma, shape.resized(2).nodes) == (2, 3 + 6)
    assert shape.resized(6).gamma == 6 and shape.resized(2).resized(4).tree == shape.tree
    assert shape.resized(0).nodes == 0 and len(shape.resized(0).tree) == 0 and shape.resized(0).branches == 1
    assert shape.clamped(4) is shape and shape.label == "dynamic of 12 nodes, depth 4"


SIZES = [*product(["dynamic"], ["nodes", "depth", "branching", "beam"]), *product(["rows"], ["k", "w", "budget"])]


def test_sizes_below_one_and_other_things_are_refused(group_values):
    for (name, key), value in product(SIZES, (0, 1.5, "many", None)):
        with refused(rf"^Bad value structure\.{key}="):
            structures.build(group_values("structure", name, **{key: value}))
