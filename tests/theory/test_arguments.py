"""The closed forms refuse arguments outside of their range, in a sentence that names them."""

import numpy as np
import pytest

from specdec.theory import capped_geometric as model
from specdec.theory.roofline import Product, distinct_experts, padded_rows, ridge_rows
from specdec.theory.trees import best_tree, choose_tree, expected_tokens, tree_by_heap, tree_by_program

RANKS = (0.6, 0.2)
LEVELS = [(0.56, 0.11), (0.32, 0.11)]
REFUSED = {
    "must be": [
        lambda values=values: model.batch_speedup(*values)
        for values in ((0, 1, 0.1, 1), (2, 1, -0.1, 1), (2, 1, 0.1, 0))
    ],
    "alpha must lie between 0 and 1": [
        lambda alpha=alpha: model.tokens_per_round(alpha, 3) for alpha in (-0.1, 1.1, np.nan)
    ],
    "gamma must be a whole number": [
        lambda gamma=gamma: model.tokens_per_round(0.5, gamma) for gamma in (-1, 2.5, np.nan)
    ],
    "hazards": [lambda: model.product_identity([0.5, -0.1])],
    r"must|between|whole": [
        *(lambda given=given: distinct_experts(*given) for given in (([0.5, 1.1], 1), ([0.5], -1), ([0.5], 1.5))),
        *(lambda: ridge_rows(1, 0, 1, 1), lambda: padded_rows(1.5, 1), lambda: Product("up", 32, 48, 2, 2).flops(0, 1)),
    ],
    "c must be a finite number": [lambda: model.speedup(0.8, 5, -0.1), lambda: model.oracle_speedup(0.8, -0.1)],
    "v must be above 0": [lambda: model.speedup(0.8, 5, 0.1, 0.0)],
    "max_gamma": [lambda: model.optimal_gamma(0.8, 0.1, max_gamma=0)],
    "between 0 and 1": [lambda build=build: build((0.5, 1.1), 4) for build in (tree_by_heap, tree_by_program)],
    "nodes must be a whole number of at least 0": [lambda: best_tree(RANKS, -1)],
    "depth must be a whole number": [lambda: best_tree(RANKS, 3, depth=-1)],
    "one vector over ranks, or a list": [
        lambda accuracy=accuracy: best_tree(accuracy, 3) for accuracy in ([], [[]], [0.5, [0.1]], [[[0.5]]])
    ],
    "node 1 has parent 1": [lambda: expected_tokens((-1, 1), (0, 0), RANKS)],
    "differ in length": [lambda: expected_tokens((-1, 0), (0,), RANKS)],
    "rank 4 at depth 1": [lambda: expected_tokens((-1,), (4,), RANKS)],
    "rank 0 at depth 3": [lambda: expected_tokens((-1, 0, 1), (0, 0, 0), LEVELS)],
    "seconds must be above 0": [lambda: choose_tree(RANKS, lambda rows: 0.0, 0.0, 3, 3)],
}


def test_arguments_outside_of_their_range_are_refused():
    for words, calls in REFUSED.items():
        for call in calls:
            with pytest.raises(ValueError, match=words):
                call()
