"""The batch at which speculation stops paying, and an interval that rests on few repeats."""

from math import inf, isnan, nan

import numpy as np
import pytest

from specdec.analysis.cost.break_even import batch_in_words, few_units_interval, interval_in_words, stops_paying

BATCHES = [1, 2, 4, 8]


@pytest.mark.parametrize(
    ("speedups", "batch"),
    [
        ([1.5, 1.2, 0.8, 0.7], 2**1.5),  # half way between 2 and 4 on the axis of log2 B
        ([0.9, 0.8, 0.7, 0.6], 0),
        ([1.5, 1.4, 1.3, 1.2], inf),
        ([0.9, 1.2, 0.8, 0.7], 2**1.5),  # what is below 1 before does not count
        ([1.2, 0.9, 1.1, 0.9], 2**2.5),  # the last crossing
        ([0.8, 0.9, 0.95, 1.1], inf),
        ([1.5, 1.0, 0.5, 0.4], 2),  # 1 still pays
        ([1.5, nan, 0.8, 0.7], nan),
    ],
)
def test_the_last_crossing_over_log2(speedups, batch):
    assert stops_paying(BATCHES, speedups) == pytest.approx(batch, nan_ok=True)


def test_bounds_may_be_no_batch_and_every_batch():
    values = np.array([3.0, *[0.0] * 10, *[3.0] * 80, *[inf] * 10])
    found = few_units_interval(values, 8)
    assert (found.estimate, found.low, found.high, found.prompts) == (3.0, 0.0, inf, 8)
    assert interval_in_words(found, 32) == "3.0 (no batch to more than 32)"
    assert [batch_in_words(value, 16) for value in (0.0, 2.04, inf, nan)] == ["no batch", "2.0", "more than 16", "–"]
    lines = np.array([[1.5, 1.2, 0.8, 0.7], [0.9, 0.8, 0.7, 0.6], [1.5, 1.4, 1.3, 1.2]])
    assert stops_paying(BATCHES, lines) == pytest.approx([2**1.5, 0, inf])
    for values, units in (([3.0], 8), ([3.0, 2.0, 4.0], 1), ([3.0, nan, 4.0], 8)):  # too few units or values
        found = few_units_interval(np.array(values), units)
        assert found.estimate == 3 and isnan(found.low) and isnan(found.high)
        assert interval_in_words(found, 32) == "3.0"


def test_percentiles_are_expanded_to_the_level_of_few_units():
    """Eight units: t with 7 degrees of freedom 2.364624, times sqrt(8 / 7) 2.527889, which the normal law has inside at
    98.8525%.
    """
    for units, inside in ((8, 0.988525), (10_000, 0.95)):
        found = few_units_interval(np.array([0.5, *np.linspace(0, 1, 2001)]), units)
        assert (found.low, found.high) == pytest.approx(((1 - inside) / 2, (1 + inside) / 2), abs=6e-4)
