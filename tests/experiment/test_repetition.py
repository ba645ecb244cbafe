"""Loops against a brute-force count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.experiment.judging import repeated_share


def brute_force(tokens, period_max):
    """The definition, position by position."""
    longest = 0
    for period in range(1, min(period_max, len(tokens) // 2) + 1):
        run = 0
        for index in range(period, len(tokens)):
            run = run + 1 if tokens[index] == tokens[index - period] else 0
            if run >= period:
                longest = max(longest, run)
    return longest / len(tokens) if tokens else 0.0


@given(st.lists(st.integers(0, 2), max_size=30), st.integers(1, 8))
def test_equals_the_definition(tokens, period_max):
    assert repeated_share(tokens, period_max) == pytest.approx(brute_force(tokens, period_max))


def test_a_loop_is_found_and_a_text_is_not():
    assert repeated_share(list(range(20)) + [7, 8, 9] * 20, 32) == pytest.approx(57 / 80)
    assert repeated_share(list(range(80)), 32) == 0.0
    assert repeated_share([], 32) == 0.0
    assert repeated_share(list(range(40)) * 2, 32) == 0.0  # the period is longer than what counts
