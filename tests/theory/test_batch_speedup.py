"""Speedup in a batch: the closed break-even batches are where the speedup is 1, and what happens at the ends."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.calls import break_even_batch, verification_ratio

from specdec.theory.batch_speedup import batch_speedup, longest_of_batch


@given(st.integers(1, 8), st.floats(0.05, 0.95), st.floats(0, 0.3), st.floats(0.5, 200))
@settings(max_examples=200, deadline=None)
def test_the_break_even_batch_is_where_the_speedup_is_one(gamma, share, c, spare):
    tokens = 1 + share * gamma  # between plain decoding and a drafter that is always right
    batch = break_even_batch(tokens, gamma, c, spare)
    affordable = tokens - gamma * c
    if affordable <= 1:
        assert batch == 0
        assert batch_speedup(tokens, gamma, c, verification_ratio(1, gamma, spare, 1.0)) < 1
        return
    # The ratio of calls at any real batch, written out: the function itself takes whole sequences only.
    v = (spare + batch * (gamma + 1)) / (spare + batch)
    assert batch_speedup(tokens, gamma, c, v) == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize(
    "call",
    [
        lambda: batch_speedup(0, 1, 0.1, 1),
        lambda: batch_speedup(2, 1, -0.1, 1),
        lambda: batch_speedup(2, 1, 0.1, 0),
    ],
)
def test_arguments_outside_their_range_are_refused(call):
    with pytest.raises(ValueError, match="must be"):
        call()


def test_the_longest_of_a_batch_is_counted_out():
    shares = [0.5, 0.2, 0.3]
    pairs = {(i, j): a * b for i, a in enumerate(shares) for j, b in enumerate(shares)}
    counted = [sum(chance for pair, chance in pairs.items() if max(pair) == k) for k in range(3)]
    assert longest_of_batch(shares, 2) == pytest.approx(counted)
    assert longest_of_batch(shares, 1) == pytest.approx(shares)
    assert longest_of_batch(shares, [1, 64])[1] == pytest.approx([0, 0, 1], abs=1e-9)
