"""The roofline, and products against the sums that they stand for."""

import numpy as np
import pytest
from oracles.calls import cache_bytes

from specdec.theory.roofline import Product, call_bytes, call_flops, threshold

WEIGHT = Product("up", inputs=32, outputs=48, matrices=2, bytes_per_value=2)
SCORES = Product("attention scores", inputs=8, outputs=None, matrices=2 * 3, bytes_per_value=2, queries=4)
VALUES = Product("attention values", inputs=None, outputs=8, matrices=2 * 3, bytes_per_value=2, queries=4)


def test_products_add_up_to_weights_cache_and_arithmetic():
    products = (WEIGHT, SCORES, VALUES)
    kv = cache_bytes(100, layers=2, kv_heads=3, head_size=8, bytes_per_value=2)
    assert call_bytes(products, 100) == 2 * 32 * 48 * 2 + kv
    # 12 heads of 8; five rows see the 100 cached tokens and themselves.
    assert call_flops(products, 5, 100) == 2 * 5 * 2 * 32 * 48 + 2 * (2 * 5 * 2 * 12 * 8 * 105)
    assert np.shape(call_bytes(products, [[10], [20]])) == (2, 1)
    assert np.shape(call_flops(products, [1, 2, 3], [[10], [20]])) == (2, 3)


def test_operations_per_byte():
    """Few rows: 2 n / (bytes of a value), and as much again for each head that shares a key. Many: the activations."""
    wide = Product("up", 4096, 4096, 1, 2)
    assert wide.intensity([1, 4], 100) == pytest.approx([1, 4], rel=3e-3)
    assert wide.intensity(10**9, 100) == pytest.approx(4096 / 2, rel=1e-3)
    assert WEIGHT.intensity(3, 0) == 2 * 3 * 32 * 48 / (2 * (32 * 48 + 3 * (32 + 48)))
    # Two rows of four heads against 1,000 keys of one kv head, and themselves.
    assert SCORES.intensity(2, 1000) == pytest.approx(2 * 8 * 1002 / (2 * (1000 + 8)))
    assert SCORES.intensity(2, 1000) == VALUES.intensity(2, 1000)
    assert threshold(1.935e12, 3.12e14) == pytest.approx(161.24, abs=0.005)
    assert not WEIGHT.cached and SCORES.cached and VALUES.cached
