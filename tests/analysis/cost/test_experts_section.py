"""Calls of a mixture as the cost model predicts them from two of them, beside times that were made up."""

import numpy as np
import pytest

from specdec.analysis.cost.experts_section import predicted_calls
from specdec.theory.distinct_experts import distinct_experts

ROWS = np.arange(1, 9)
READS = 10 + 3 * distinct_experts([0.25] * 8, ROWS)


@pytest.mark.parametrize(("reading", "computing"), [(2.0, 0.5), (2.0, 0.0), (0.0, 3.0)])
def test_two_calls_tell_what_reading_and_computing_cost(reading, computing):
    seconds = reading * READS + computing * ROWS
    seen = np.where(np.isin(ROWS, (1, 5)), seconds, np.nan)  # the others are predicted unseen
    assert predicted_calls(ROWS, READS, seen, (1, 5)) / seconds == pytest.approx(1)


def test_a_call_is_never_predicted_to_gain_by_tokens():
    predicted = predicted_calls(ROWS, READS, 5 + 0.01 * ROWS, (1, 8))
    assert predicted / READS == pytest.approx(predicted[0] / READS[0])


def test_one_call_tells_too_little():
    with pytest.raises(ValueError, match=r"calls on \[1, 99\] tokens tell no two coefficients"):
        predicted_calls(ROWS, READS, READS, (1, 99))
