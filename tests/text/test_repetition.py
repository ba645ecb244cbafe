"""Loops against a brute-force count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.text.repetition import loop_marks, repeated_share


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


@given(st.lists(st.integers(0, 1), max_size=24), st.integers(1, 6), st.integers(1, 8))
def test_marks_equal_the_definition(tokens, period_max, least):
    expected = [False] * len(tokens)
    for period in range(1, min(period_max, len(tokens) // 2) + 1):
        run = [place >= period and tokens[place] == tokens[place - period] for place in range(len(tokens))]
        for place in range(len(tokens)):
            start = place
            while start > 0 and run[start - 1]:
                start -= 1
            end = place
            while end < len(tokens) and run[end]:
                end += 1
            if run[place] and end - start >= max(2 * period, least) and place - start >= period:
                expected[place] = True
    assert loop_marks(tokens, period_max, least).tolist() == expected


def test_what_stands_twice_is_not_marked():
    assert not loop_marks([1, 2, 3, 4] * 2, 32, 4).any()
    assert loop_marks([1, 2, 3, 4] * 3, 32, 4).tolist() == [False] * 8 + [True] * 4
    assert not loop_marks([1, 2, 3, 4] * 3, 32, 9).any(), "a run of eight tokens"
    assert loop_marks([], 32, 4).tolist() == []
