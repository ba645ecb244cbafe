"""A tree as a batch of its paths, against the paths themselves."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from specdec.models.path_batch import path_batch
from specdec.records import Tree, chain_tree

TREES = st.lists(st.floats(0, 0.999), max_size=12).map(
    lambda dice: Tree(tuple(int(value * (node + 1)) - 1 for node, value in enumerate(dice)))
)


@given(TREES)
def test_every_row_is_the_root_and_a_path_to_a_leaf(tree):
    batch = path_batch(tree)
    assert len(batch) == max(1, len(tree.leaves)) and batch.chain is chain_tree(tree.depth)
    for row, leaf in zip(batch.index.tolist(), tree.leaves, strict=len(tree) > 0):
        path = [0, *(node + 1 for node in tree.path(leaf))]
        assert row == path + [0] * (tree.depth + 1 - len(path))
    # Every node is found where it stands; padding, which repeats the root, stands for nothing.
    assert batch.index.flatten()[batch.places].tolist() == list(range(len(tree) + 1))
    assert batch.places[0] == 0 and torch.equal(batch.places % batch.index.shape[1], tree.offsets)
    # A path is taken from a row that begins with it.
    assert batch.sequence_of(()) == 0
    for node in range(len(tree)):
        path = tree.path(node)
        row = batch.index[batch.sequence_of(path)].tolist()
        assert row[: len(path) + 1] == [0, *(step + 1 for step in path)]
