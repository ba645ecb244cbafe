"""Distinct experts against the enumeration of all that independent tokens can choose, and the bytes that follow."""

from itertools import combinations, product

import numpy as np
import pytest

from specdec.theory.distinct_experts import distinct_experts
from specdec.theory.roofline import Product


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
