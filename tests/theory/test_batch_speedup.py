"""Speedup in a batch: the closed break-even batches are where the speedup is 1, and what happens at the ends."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.calls import break_even_batch, call_seconds, roofline_break_even_batch, verification_ratio

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


@pytest.mark.parametrize(("tokens", "gamma", "c"), [(3.0, 4, 0.05), (1.8, 1, 0.1), (4.0, 6, 0.2)])
def test_the_roofline_batch_is_where_its_calls_cross(tokens, gamma, c):
    ridge, bandwidth, throughput = 160.0, 1.0, 2.0
    read = 2 * ridge * bandwidth / throughput  # bytes whose reading takes as long as computing for `ridge` tokens

    def gain(batch: float) -> float:
        calls = [call_seconds(read, 2 * n, bandwidth, throughput) for n in (batch * (gamma + 1), batch)]
        return float(batch_speedup(tokens, gamma, c, calls[0] / calls[1]))

    batch = float(roofline_break_even_batch(tokens, gamma, c, ridge))
    assert gain(batch) == pytest.approx(1)
    assert gain(0.99 * batch) > 1 > gain(1.01 * batch)


def test_what_no_batch_pays_and_what_all_do():
    assert break_even_batch(1.5, 2, 0.25, 10) == roofline_break_even_batch(1.5, 2, 0.25, 10) == 0
    assert np.isinf(break_even_batch(3, 2, 0, 10)) and np.isinf(roofline_break_even_batch(3, 2, 0, 10))
    assert batch_speedup(2.952, 4, 0.1, 1.2) == pytest.approx(2.952 / 1.6)
    assert verification_ratio(1, 3, 1e9, 1) == pytest.approx(1)
    assert verification_ratio(10**9, 3, 1, 1) == pytest.approx(4)
    rising = verification_ratio([1, 2, 4, 8, 16, 32], 3, 10, 1)
    assert (np.diff(rising) > 0).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda: batch_speedup(0, 1, 0.1, 1),
        lambda: batch_speedup(2, 1, -0.1, 1),
        lambda: batch_speedup(2, 1, 0.1, 0),
        lambda: verification_ratio(0, 1, 1, 1),
        lambda: break_even_batch(2, 0, 0.1, 1),
        lambda: roofline_break_even_batch(2, 1, 0.1, 0),
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
