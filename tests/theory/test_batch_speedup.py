"""The longest draft of a batch; theory.md has the values of its speedup."""

import pytest

from specdec.theory.batch_speedup import longest_of_batch


def test_the_longest_of_a_batch_is_counted_out():
    shares = [0.5, 0.2, 0.3]
    pairs = {(i, j): a * b for i, a in enumerate(shares) for j, b in enumerate(shares)}
    counted = [sum(chance for pair, chance in pairs.items() if max(pair) == k) for k in range(3)]
    assert longest_of_batch(shares, 2) == pytest.approx(counted)
    assert longest_of_batch(shares, 1) == pytest.approx(shares)
    assert longest_of_batch(shares, [1, 64])[1] == pytest.approx([0, 0, 1], abs=1e-9)
