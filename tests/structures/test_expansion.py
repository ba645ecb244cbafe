"""Trees by their expansion: the topology counted out by hand, its levels, and its limit."""

from fixtures.refusals import refused

from specdec.structures.base import structures


def expansion(*widths, nodes=64):
    return structures.build({"name": "expansion", "widths": list(widths), "nodes": nodes})


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


def test_bad_trees_are_one_sentence():
    for values, said in (
        ({"widths": [4, 4], "nodes": 19}, r"structure\.widths=\[4, 4\]: the tree has 20 nodes"),
        ({"widths": [], "nodes": 9}, r"structure\.widths=\[\]"),
        ({"widths": [2, 0], "nodes": 9}, r"structure\.widths\.1=0"),
        ({"widths": [2]}, r"structure\.nodes"),
    ):
        with refused(said):
            structures.build({"name": "expansion", **values})
