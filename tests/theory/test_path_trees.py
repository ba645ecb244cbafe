"""The tree of counted rank paths against every small tree there is, and against products where choices are free."""

from itertools import combinations, product

import numpy as np
import pytest
from oracles.path_trees import tree_of_paths

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


@pytest.mark.parametrize("seed", range(3))
def test_it_is_the_best_of_all_trees(seed):
    paths = made_up(seed)
    for nodes in range(4):
        every = [set(each) for size in range(nodes + 1) for each in combinations(EVERY, size) if is_tree(each)]
        best = max(order(each, paths) for each in every)
        tree = tree_of_paths(paths, nodes)
        assert is_tree(nodes_of(tree)) and order(nodes_of(tree), paths) == best
        assert tree.tokens == pytest.approx(1 + best[0] / len(paths))
