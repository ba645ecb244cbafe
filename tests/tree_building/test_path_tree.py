"""A tree that grows path by path against a set of paths that is counted anew each time."""

from hypothesis import given
from hypothesis import strategies as st

from specdec.records import Source
from specdec.tree_building.lookup_filling import NOTHING
from specdec.tree_building.path_tree import PathTree

PATHS = st.lists(st.lists(st.integers(0, 2), max_size=4).map(tuple), max_size=8)


def beginnings(paths):
    return {path[:size] for path in paths for size in range(1, len(path) + 1)}


def leaves(nodes):
    return [node for node in nodes if not any(other[:-1] == node for other in nodes)]


@given(PATHS, st.integers(1, 8), st.integers(1, 4), st.integers(1, 4))
def test_a_path_is_taken_as_a_whole_where_it_fits(paths, nodes, depth, branches):
    tree, taken = PathTree(nodes, depth, branches), []
    for number, path in enumerate(paths):
        after = beginnings([*taken, path])
        known = set(path and [path]) <= beginnings(taken)
        fits = len(after) <= nodes and len(path) <= depth and len(leaves(after)) <= branches
        added = tree.add(path, Source("path", number))
        assert (added is not None) == (known or fits)
        if added is not None:
            taken.append(path)
    tokens, topology, source = tree.proposal()
    if not beginnings(taken):
        assert tree.proposal() == NOTHING
        return
    written = [tuple(tokens[node] for node in topology.path(node)) for node in range(len(tokens))]
    assert sorted(written) == sorted(beginnings(taken))
    assert len(topology.leaves) == len(leaves(beginnings(taken))) <= branches
    # A node belongs to the first path that has it.
    for node, origin in zip(written, source, strict=True):
        owners = [number for number, path in enumerate(paths) if path in taken and path[: len(node)] == node]
        assert origin.rank == owners[0]


def test_the_place_of_a_path_is_its_last_node():
    tree = PathTree(4, 3, 2)
    assert tree.add((), Source("path", 0)) == -1
    assert tree.add((5, 6), Source("path", 1)) == 1
    assert tree.add((5,), Source("path", 2)) == 0
    assert tree.add((5, 7), Source("path", 3)) == 2
    assert tree.add((8,), Source("path", 4)) is None  # a third branch
