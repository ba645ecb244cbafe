"""The token tree: depths, children and visibility against definitions written another way."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.records import Tree, chain_tree

TREES = st.lists(st.floats(0, 0.999), max_size=12).map(
    lambda dice: Tree(tuple(int(value * (node + 1)) - 1 for node, value in enumerate(dice)))
)


def ancestors(tree, node):
    """The node itself and all above it, the root (-1) included."""
    return [node] if node < 0 else [node, *ancestors(tree, tree.parents[node])]


@settings(max_examples=40)
@given(TREES)
def test_a_tree_is_what_the_parents_of_its_nodes_say(tree):
    """A node sees its ancestors and itself; depth and offsets count the steps to the root; a chain never branches."""
    depths = [len(ancestors(tree, node)) - 1 for node in range(len(tree))]
    assert list(tree.depths) == depths
    assert tree.depth == max(depths, default=0)
    assert tree.offsets.tolist() == [0, *depths]
    expected = [[column in ancestors(tree, row) for column in range(-1, len(tree))] for row in range(-1, len(tree))]
    assert tree.visible.tolist() == expected
    for node in range(-1, len(tree)):
        assert list(tree.children[node + 1]) == [child for child in range(len(tree)) if tree.parents[child] == node]
    assert tree.is_chain == (tree.parents == chain_tree(len(tree)).parents)
    assert tree.is_chain == (tree.depth == len(tree))


@pytest.mark.parametrize("parents", [(0,), (-1, 1), (-1, 2, 0), (-2,), (-1, 0, 3)])
def test_a_parent_comes_before_its_child(parents):
    with pytest.raises(ValueError, match="parents must precede"):
        Tree(parents)


def test_chains_are_made_once():
    assert chain_tree(3) is chain_tree(3)
    assert chain_tree(3).parents == (-1, 0, 1) and chain_tree(0).parents == ()
