"""The roofline: products against the sums that they stand for, distinct experts against the enumeration of all that
independent tokens can choose.
"""

from itertools import combinations, product

import numpy as np
import pytest
from oracles.calls import cache_bytes

from specdec.theory.roofline import Product, call_bytes, call_flops, distinct_experts, threshold

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


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("tokens", [0, 1, 2, 3])
def test_it_is_the_mean_over_all_choices(tokens, even):
    """Each token chooses two of four experts, by a law over pairs in which experts depend on each other."""
    pairs = list(combinations(range(4), 2))
    law = np.full(6, 1 / 6) if even else np.array([0.4, 0.05, 0.05, 0.1, 0.1, 0.3])
    chances = [sum(law[place] for place, pair in enumerate(pairs) if expert in pair) for expert in range(4)]
    mean = sum(
        np.prod(law[list(places)]) * len({expert for place in places for expert in pairs[place]})
        for places in product(range(6), repeat=tokens)
    )
    assert distinct_experts(chances, tokens) == pytest.approx(mean, abs=1e-12)
    if even:
        assert distinct_experts([0.5] * 4, tokens) == pytest.approx(4 * (1 - 0.5**tokens))


def test_a_product_of_a_mixture_reads_the_experts_of_its_tokens_and_computes_the_chosen_ones():
    stack = Product("gate_up_proj", 32, 96, matrices=3, bytes_per_value=2, experts=8, chosen=2)
    one = 3 * 32 * 96 * 2
    assert stack.bytes(100) == pytest.approx(2 * one) and stack.bytes(0, 2) == pytest.approx(3.5 * one)
    np.testing.assert_allclose(stack.bytes(0, [1, 2, 10**6]), np.array([2, 3.5, 8]) * one)
    assert stack.flops(5, 0) == 2 * 5 * 2 * 3 * 32 * 96
    assert stack.intensity(1, 0) == pytest.approx(2 * 2 * one / 2 / (2 * one + 2 * 2 * 3 * (32 + 96)))
