"""Block verification against the formulas of theory.md 1.3, by enumeration of the real rule. That it is lossless is
tested with all lossless rules in test_losslessness.py.
"""

import numpy as np
import pytest
import torch
from oracles.acceptance import block_weights

from specdec.records import Draft, chain_tree
from specdec.verifiers.base import verifiers
from specdec.verifiers.block import _weights

BLOCK = verifiers.build({"name": "block"})


def rows_along(start, law, path):
    """[len(path) + 1, V]: the laws before every token of a path, and after it."""
    return torch.tensor([start, *(law[token] for token in path)], dtype=torch.float64)


@pytest.mark.parametrize("seed", range(5))
def test_accepted_lengths_of_a_path_are_those_of_the_theory(enumeration, random_law, seed):
    """Against weights computed step by step, without logarithms; all that ends a chain early is a rejection."""
    generator = torch.Generator().manual_seed(seed)
    p, q = random_law(5, seed), random_law(5, seed + 20)
    path = torch.randint(5, (5,), generator=generator).tolist()
    q_rows = rows_along(q[0].tolist(), q.tolist(), path)[:-1]
    p_rows = rows_along(p[0].tolist(), p.tolist(), path)
    draft = Draft(torch.tensor(path), chain_tree(5), q_rows)

    def accepted():
        decision = BLOCK.accept(draft, p_rows, enumeration.generator)
        assert decision.rejected == (len(decision.path) < 5)
        return len(decision.path)

    law = enumeration.law(accepted)
    expected = block_weights(p_rows[:-1].numpy(), q_rows.numpy(), path).accepted_pmf()
    assert [law.get(length, 0.0) for length in range(6)] == pytest.approx(expected.tolist(), abs=1e-12)


def test_equal_laws_accept_everything_whatever_the_numbers():
    generator = torch.Generator().manual_seed(1)
    p = (3 * torch.randn(41, 50, generator=generator)).softmax(-1)  # float32, as a target's
    for _ in range(50):
        tokens = torch.multinomial(p[:40], 1, generator=generator).squeeze(-1)
        assert len(BLOCK.accept(Draft(tokens, chain_tree(40), p[:40]), p, generator).path) == 40


def test_a_long_chain_keeps_its_digits():
    """Two hundred steps up and down in float32: the chance that all pass is that of the step-by-step product."""
    generator = torch.Generator().manual_seed(2)
    p = torch.randn(201, 30, generator=generator).softmax(-1)
    q = torch.randn(200, 30, generator=generator).softmax(-1)
    tokens = torch.multinomial(q, 1, generator=generator).squeeze(-1)
    expected = block_weights(p[:200].double().numpy(), q.double().numpy(), tokens.tolist()).weights
    weights = _weights(p[:200], q, tokens)
    assert np.abs(weights.double().numpy() - expected).max() < 1e-6
