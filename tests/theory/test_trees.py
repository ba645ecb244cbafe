"""Token trees: heap against dynamic program, both against every tree there is."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.records import Tree
from specdec.theory.trees import (
    best_tree,
    choose_tree,
    expected_tokens,
    tokens_by_nodes,
    tree_by_heap,
    tree_by_program,
)

FLAT = (0.6, 0.2, 0.1, 0.05)
HEADS = [(0.56, 0.11, 0.06, 0.03, 0.02), (0.32, 0.11, 0.06, 0.04, 0.03), (0.20, 0.09, 0.06, 0.04, 0.03)]
BUILDERS = [best_tree, tree_by_heap, tree_by_program]


FALLING = st.lists(st.floats(0, 0.6), min_size=1, max_size=4).map(lambda values: sorted(values, reverse=True))


@given(st.one_of(FALLING, st.lists(FALLING, min_size=1, max_size=4)), st.integers(0, 12), st.integers(0, 5))
@settings(max_examples=40)
def test_the_program_equals_the_heap_where_accuracy_falls_with_rank(accuracy, nodes, depth):
    heap, program = tree_by_heap(accuracy, nodes, depth), tree_by_program(accuracy, nodes, depth)
    assert program.tokens == pytest.approx(heap.tokens, rel=1e-12)
    np.testing.assert_allclose(
        tokens_by_nodes(accuracy, nodes, depth),
        [tree_by_program(accuracy, n, depth).tokens for n in range(nodes + 1)],
        rtol=1e-12,
    )


@cache
def shapes(nodes: int, depth: int, ranks: int) -> frozenset[tuple]:
    """Every tree of exactly so many nodes below its top, at most so deep, as nested tuples of children."""
    if nodes == 0:
        return frozenset({()})
    if depth == 0 or ranks == 0:
        return frozenset()
    return frozenset(
        (*earlier, last)  # children of ranks 0, 1, ..., the last of which takes `size` nodes
        for size in range(1, nodes + 1)
        for last in every_shape(size - 1, depth - 1)
        for earlier in shapes(nodes - size, depth, ranks - 1)
    )


RANKS = 3


def every_shape(nodes: int, depth: int) -> frozenset[tuple]:
    return shapes(nodes, depth, RANKS)


def worth(children: tuple, vectors: list[tuple[float, ...]], depth: int = 0) -> float:
    return 1 + sum(vectors[depth][rank] * worth(child, vectors, depth + 1) for rank, child in enumerate(children))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("depth", [2, 6])
def test_the_program_finds_the_best_of_all_trees(seed, depth):
    """Its nodes come in level order, and no sibling's rank is left out: else it were worth less than it says."""
    generator = np.random.default_rng(seed)
    vectors = [tuple(row) for row in generator.uniform(0, 0.6, size=(6, RANKS))]
    if seed % 2:
        vectors = vectors[:1] * 6
    for nodes in range(7):
        most = max(worth(shape, vectors) for n in range(nodes + 1) for shape in every_shape(n, depth))
        accuracy = vectors[0] if seed % 2 else vectors
        tree = best_tree(accuracy, nodes, depth)
        assert tree.tokens == pytest.approx(most, rel=1e-12)
        assert expected_tokens(tree.parents, tree.ranks, accuracy) == pytest.approx(most, rel=1e-12)
        topology = Tree(tree.parents)
        keys = list(zip(topology.depths, tree.parents, tree.ranks, strict=True))
        assert keys == sorted(keys) and tree.ranks == topology.ranks


def test_nodes_that_are_worth_nothing_are_left_out():
    for build in BUILDERS:
        assert build((0.5, 0.0, 0.0), 10, depth=3).parents == (-1, 0, 1)
        assert len(build((0.0, 0.0), 10)) == 0
        assert len(build(HEADS, 200)) == 5 + 5**2 + 5**3  # all there are


@pytest.mark.parametrize("accuracy", [FLAT, HEADS, (0.1, 0.5, 0.05, 0.3)])
@pytest.mark.parametrize(("draft_seconds", "price"), [(0.0, 0.02), (0.3, 0.02), (0.05, 1.0), (0.05, 0.0)])
def test_the_chosen_tree_has_the_highest_rate(accuracy, draft_seconds, price):
    def seconds(rows: int) -> float:
        return 1.0 + price * rows + 0.5 * (rows > 8)  # a step, as of tiles

    chosen = choose_tree(accuracy, seconds, draft_seconds, nodes_max=10, depth_max=4)
    rates = {
        (n, depth): best_tree(accuracy, n, depth).tokens / (seconds(n + 1) + depth * draft_seconds)
        for n in range(11)
        for depth in range(5)
        if n == 0 or depth > 0
    }
    spent = seconds(len(chosen) + 1) + Tree(chosen.parents).depth * draft_seconds
    assert chosen.tokens / spent == pytest.approx(max(rates.values()))


def test_nodes_that_are_worth_nothing_make_no_call_cheaper():
    """Only three nodes are worth something; a call on five rows would be a bargain."""
    chosen = choose_tree((0.5, 0.0), lambda rows: 1.0 if rows <= 4 else 0.1, 0.0, nodes_max=6, depth_max=3)
    assert len(chosen) == 3
