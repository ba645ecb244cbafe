"""A tree that grows path by path, against sets of beginnings."""

from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.records import Source
from specdec.tree_building.lookup_filling import PathTree

PATHS = st.lists(st.lists(st.integers(0, 2), max_size=4).map(tuple), max_size=10)


def beginnings(paths):
    return {path[:end] for path in paths for end in range(1, len(path) + 1)}


def leaves(nodes):
    return [node for node in nodes if not any(other[:-1] == node for other in nodes)]


@given(PATHS, st.integers(1, 9), st.integers(1, 4), st.integers(1, 4))
@settings(max_examples=50)
def test_a_path_is_added_where_all_of_it_fits(paths, nodes, depth, branches):
    tree, kept, ends = PathTree(nodes, depth, branches), [], []
    for number, path in enumerate(paths):
        found, together = tree.add(path, Source("s", number)), beginnings([*kept, path])
        fits = (
            len(together) <= nodes and len(leaves(together)) <= branches and max(map(len, together), default=0) <= depth
        )
        assert (found is not None) == fits
        if fits:
            kept.append(path)
            ends.append((path, found, number))
    proposal = tree.proposal()
    written = [tuple(proposal.tokens[at] for at in proposal.tree.path(node)) for node in range(len(proposal.tokens))]
    assert len(written) == len(set(written)) and set(written) == beginnings(kept)
    assert all((written[node] if node >= 0 else ()) == path for path, node, _ in ends)
    for node, beginning in enumerate(written):
        assert proposal.source[node].rank == next(
            number for path, _, number in ends if path[: len(beginning)] == beginning
        )
