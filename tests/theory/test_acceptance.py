"""The weights of block verification along every path, against the expected length that the oracle sums up otherwise."""

from itertools import product

import numpy as np
import pytest
from oracles.acceptance import block_weights, expected_accepted

P = np.array([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.3, 0.3, 0.4]])
Q = np.array([[0.4, 0.4, 0.2], [0.2, 0.5, 0.3], [0.5, 0.2, 0.3]])


def test_block_verification_reaches_its_expected_length():
    """That it is lossless, and accepts as the weights say, the real rule shows (contracts and verifiers)."""
    expected = 0.0
    for path in product(range(3), repeat=3):
        p, q = (np.stack([law[0], *law[list(path[:2])]]) for law in (P, Q))
        expected += np.prod(q[np.arange(3), path]) * block_weights(p, q, path).accepted_pmf() @ np.arange(4)
    assert expected == pytest.approx(expected_accepted(P[0], Q[0], P, Q, 3).block, abs=1e-12)
