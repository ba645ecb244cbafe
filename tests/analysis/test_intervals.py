"""The prompt bootstrap: resampling is what it says, one prompt has no interval, coverage, speed."""

from math import isnan

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.analysis.intervals import (
    ANY,
    FEWEST,
    POSITIVE,
    RELATIVE,
    SHARE,
    Columns,
    Interval,
    Range,
    bootstrap,
    per_round,
    percentile_bounds,
    resampled_sums,
    stretch,
)


def tokens_per_round(sums: Columns) -> dict[str, np.ndarray]:
    return {"tokens_per_round": sums["tokens"] / sums["rounds"]}


def test_replicates_are_sums_of_as_many_prompts():
    sums = np.array([[1, 1.0], [1, 10.0], [1, 100.0]])
    drawn = resampled_sums(sums, 2_000, seed=0)
    np.testing.assert_array_equal(drawn[:, 0], 3)
    assert set(drawn[:, 1]) <= {a + 10 * b + 100 * (3 - a - b) for a in range(4) for b in range(4 - a)}
    assert len(set(drawn[:, 1])) == 10  # all of them occur: the rarest misses with probability e^-74
    spread = np.sqrt(3 * np.var([1, 10, 100]) / 2_000)
    assert abs(drawn[:, 1].mean() - 111) < 5 * spread


def test_the_seed_decides_and_chunks_do_not_matter(monkeypatch):
    sums = np.random.default_rng(0).random((7, 2))
    first = resampled_sums(sums, 50, seed=3)
    np.testing.assert_array_equal(first, resampled_sums(sums, 50, seed=3))
    assert not np.array_equal(first, resampled_sums(sums, 50, seed=4))
    monkeypatch.setattr("specdec.analysis.intervals.CHUNK", 20)
    np.testing.assert_allclose(resampled_sums(sums, 50, seed=3), first)


@pytest.mark.parametrize("prompts", [1, FEWEST - 1])
def test_few_prompts_give_an_estimate_and_no_interval(prompts):
    table = pd.DataFrame({"tokens": [100.0] * prompts, "rounds": [50.0] * (prompts - 1) + [20.0]})
    interval = bootstrap(table, tokens_per_round)["tokens_per_round"]
    assert interval.estimate == pytest.approx(100 * prompts / (50 * (prompts - 1) + 20))
    assert isnan(interval.low) and isnan(interval.high) and interval.prompts == prompts


def test_equal_prompts_have_no_spread_and_statistics_share_their_replicates():
    table = pd.DataFrame({"a": [1.0, 2, 5, 9, 4], "b": [2.0, 4, 10, 18, 8], "c": [3.0, 1, 2, 2, 5]})
    intervals = bootstrap(table, lambda sums: {"same": sums["a"] / sums["b"], "other": sums["a"] / sums["c"]})
    assert intervals["same"].low == intervals["same"].high == 0.5
    assert intervals["other"].low < intervals["other"].estimate < intervals["other"].high


def test_undefined_replicates_are_left_out_until_they_are_too_many():
    values = np.append(np.linspace(0, 1, 97), [np.nan] * 3)
    assert percentile_bounds(values) == pytest.approx((0.025, 0.975))
    assert all(isnan(bound) for bound in percentile_bounds(np.append(values, [np.inf] * 5)))
    table = pd.DataFrame({"tokens": [3.0, *[0.0] * 5], "rounds": [2.0, *[0.0] * 5]})  # in a third is no round
    interval = bootstrap(table, tokens_per_round)["tokens_per_round"]
    assert interval.estimate == 1.5 and isnan(interval.low)


def test_bad_tables_options_and_values_are_refused():
    for bad in (pd.DataFrame({"a": []}), pd.DataFrame({"a": [1.0, np.nan]})):
        with pytest.raises(ValueError, match="at least one prompt"):
            bootstrap(bad, lambda sums: {"a": sums["a"]})
    with pytest.raises(ValueError, match="replicates"):
        bootstrap(pd.DataFrame({"a": [1.0, 2.0]}), lambda sums: {"a": sums["a"]}, replicates=0)
    table = pd.DataFrame({"tokens": [9.42] * 6, "rounds": [1.0] * 6})
    with pytest.raises(ValueError, match="tokens_per_round is impossible: 9.42 does not lie between 1 and 5"):
        bootstrap(table, tokens_per_round, ranges={"tokens_per_round": per_round(4)})
    assert Interval.of_replicates(np.array([1 + 1e-12, 1.0]), 1, SHARE).estimate == 1  # rounding is none


def test_an_interval_prints_in_one_way():
    interval = Interval(1.3, 1.184, 1.4412, 20)
    assert f"{interval}" == "1.300 (1.184 to 1.441)"
    assert f"{interval:+.2f}" == "+1.30 (+1.18 to +1.44)"
    assert f"{Interval(-0.001, -0.02, 0.011):+.2f}" == "+0.00 (-0.02 to +0.01)"
    assert f"{Interval(0.251):.0%}" == "25%" and f"{Interval(0.251, prompts=3):.0%}" == "25% (–)"
    assert f"{Interval.from_metrics({'x': 2.0, 'x.ci_low': 1.5, 'x.ci_high': 2.5}, 'x'):.1f}" == "2.0 (1.5 to 2.5)"
    assert not Interval.from_metrics({"x": 2.0}, "x").known


@pytest.mark.parametrize("prompts", [5, 10])
def test_coverage_holds_for_few_prompts(prompts):
    """Pairs of equal methods, 400 of them, have times with heavy tails: at a true coverage of 94.5% fewer than 91% of
    their intervals hold 1 with probability 3e-3; seeds are fixed. The percentiles alone hold in 83% at 5 prompts and in
    89% at 10.
    """
    generator, held = np.random.default_rng(prompts), 0
    for run in range(400):
        tokens = generator.integers(40, 129, prompts).astype(float)
        first, second = (tokens * np.exp(0.02 * generator.standard_t(4, prompts)) for _ in range(2))
        table = pd.DataFrame({"tokens": tokens, "first": first, "second": second})
        found = bootstrap(table, lambda s: {"speedup": s["first"] / s["second"]}, replicates=400, seed=run)["speedup"]
        held += bool(found.contains(1.0))
    assert 0.91 <= held / 400 <= 0.985


QUANTITIES = {  # range: a value in it, and replicates of it, the last ones at the ends of the range
    per_round(4): (1.33, [1.05, 1.2, 1.6, 3.0, 1.0, 5.0]),
    POSITIVE: (0.82, [0.1, 0.5, 0.9, 40.0, 0.0]),
    SHARE: (0.97, [0.2, 0.9, 0.99, 0.0, 1.0]),
    RELATIVE: (0.3, [-0.9, 0.1, 2.0, -1.0]),
    ANY: (-0.1, [-3.0, 0.0, 4.0]),
    Range(high=0.0): (-2.0, [-9.0, -0.1, 0.0]),
}


@settings(max_examples=50)
@given(
    st.sampled_from(list(QUANTITIES.items())),
    st.integers(FEWEST, 40),
    st.lists(st.floats(0, 1), min_size=3, max_size=20),
)
def test_bounds_lie_in_the_range_and_around_the_estimate(quantity, prompts, places):
    within, (estimate, known) = quantity
    values = [estimate, *(np.interp(place, [0, 1], sorted(known)[:: len(known) - 1]) for place in places)]
    interval = Interval.of_replicates(np.array(values), prompts, within)
    assert within.low <= interval.low <= estimate <= interval.high <= within.high


def test_bounds_move_on_the_scale_of_the_range():
    """At 5 prompts by sqrt(5 / 4) 2.7764 / 1.9600 = 1.58379 times their distance."""
    assert stretch(5) == pytest.approx(1.58379, abs=1e-5)
    ends, most = np.linspace(0, 1, 401), stretch(5) * 0.95
    plain = Interval.of_replicates(np.array([0.5, *ends]), 5, ANY)
    assert (plain.low, plain.high) == pytest.approx((0.5 - most / 2, 0.5 + most / 2))
    doubled = Interval.of_replicates(np.array([2.0, *2 ** (2 * ends)]), 5)  # from 1 to 4, evenly by the logarithm
    assert np.log2([doubled.low, doubled.high]) == pytest.approx([1 - most, 1 + most], abs=1e-4)
    odds = Interval.of_replicates(np.array([0.5, *1 / (1 + np.exp(4 - 8 * ends))]), 5, SHARE)  # log odds of -4 to 4
    low, high = np.log(odds.low / (1 - odds.low)), np.log(odds.high / (1 - odds.high))
    assert (low, high) == pytest.approx((-4 * most, 4 * most), abs=1e-3)
    # An estimate at an end has its bounds up to the ends.
    assert Interval.of_replicates(np.ones(50), 5, SHARE).as_columns("x") == {"x": 1, "x_low": 1, "x_high": 1}
    rho = Interval.of_replicates(np.array([0.0, *np.linspace(0, 0.9, 200)]), 5, SHARE)
    assert (rho.low, rho.high) == (0, 1) and rho.estimate == 0
