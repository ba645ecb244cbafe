"""The tree of counted rank paths against every small tree there is, and against products where choices are free."""

from itertools import combinations, product

import numpy as np
import pytest
from oracles.path_trees import tree_of_paths

from specdec.theory.trees import best_tree

RANKS, DEPTH = 3, 3
EVERY = [path for length in range(1, DEPTH + 1) for path in product(range(RANKS), repeat=length)]


def made_up(seed):
    """Few paths, so that later ranks are often counted more often than earlier ones."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, DEPTH + 1, size=14)
    return [tuple(generator.integers(0, RANKS, size=length).tolist()) for length in lengths]


def is_tree(nodes):
    """Every node comes with its parent and its earlier siblings."""
    needs = [[path[:-1]] * (len(path) > 1) + [(*path[:-1], rank) for rank in range(path[-1])] for path in nodes]
    return all(needed in nodes for each in needs for needed in each)


def accepted(nodes, path):
    """Walk down the tree as a round does."""
    length = 0
    while length < len(path) and path[: length + 1] in nodes:
        length += 1
    return length


def order(nodes, paths):
    """Mean accepted length first, then little depth, then low ranks."""
    mean = sum(accepted(nodes, path) for path in paths)
    return mean, -sum(map(len, nodes)), -sum(path[-1] for path in nodes)


def nodes_of(tree):
    paths = []
    for parent, rank in zip(tree.parents, tree.ranks, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), rank))
    return set(paths)


@pytest.mark.parametrize("seed", range(8))
def test_it_is_the_best_of_all_trees(seed):
    paths = made_up(seed)
    for nodes in range(4):
        every = [set(each) for size in range(nodes + 1) for each in combinations(EVERY, size) if is_tree(each)]
        best = max(order(each, paths) for each in every)
        tree = tree_of_paths(paths, nodes)
        assert is_tree(nodes_of(tree)) and order(nodes_of(tree), paths) == best
        assert tree.tokens == pytest.approx(1 + best[0] / len(paths))


def test_a_later_rank_may_pay_for_the_one_before_it():
    paths = [(1, 0), (1, 0), (1, 0), (2,), (2,)]
    assert tree_of_paths(paths, 3).parents == (-1, -1, 1)
    assert tree_of_paths(paths, 3).ranks == (0, 1, 0)
    assert len(tree_of_paths(paths, 1)) == 0  # rank 0 alone accepts nothing


def test_choices_that_are_right_together_are_seen():
    """The second choice is right after the second, the first after the first: products of chances cannot tell."""
    paths = [(0, 0)] * 6 + [(1, 1)] * 5
    assert nodes_of(tree_of_paths(paths, 5)) == {(0,), (1,), (0, 0), (1, 0), (1, 1)}
    products = best_tree([(6 / 11, 5 / 11)] * 2, 5)
    assert nodes_of(products) == {(0,), (1,), (0, 0), (0, 1), (1, 0)}
    assert nodes_of(tree_of_paths(paths, 3)) == {(0,), (1,), (0, 0)}


def test_free_choices_make_the_tree_of_products():
    first, second = (5, 3, 1), (4, 2)  # of 10 and of 7 positions
    paths = []
    for rank, times in enumerate(first):
        paths += [(rank, after) for after, often in enumerate(second) for _ in range(times * often)]
        paths += [(rank,)] * times
    paths += [()] * 7
    for nodes in range(1, 9):
        products = best_tree([[n / 10 for n in first], [n / 7 for n in second]], nodes)
        found = tree_of_paths(paths, nodes)
        assert found.tokens == pytest.approx(products.tokens)


def test_nothing_right_makes_no_tree():
    assert len(tree_of_paths([(), ()], 3)) == 0 and tree_of_paths([()], 3).tokens == 1
    assert tree_of_paths([(0,)], 9).parents == (-1,)


@pytest.mark.parametrize(("paths", "nodes"), [([], 2), ([(0, -1)], 2), ([(0,)], 1.5)])
def test_bad_paths_are_refused(paths, nodes):
    with pytest.raises(ValueError, match="rank paths|nodes"):
        tree_of_paths(paths, nodes)
