"""The tests of a certificate on numbers alone: right as often as they say, and as sharp as they say."""

import numpy as np
import pytest
from scipy import stats

from specdec.certification.statistical import LEAST, Tally, chi_square


def test_draws_of_one_law_give_pearsons_statistic():
    law, counts = np.array([0.5, 0.3, 0.2]), np.array([60.0, 25.0, 15.0])
    tally = Tally(3)
    tally.add(law, counts)
    found = chi_square("test", tally)
    statistic, p_value = stats.chisquare(counts, 100 * law)
    assert (found.statistic, found.p_value) == pytest.approx((statistic, p_value), rel=1e-9)
    assert (found.draws, found.freedom) == (100, 2)


def test_rare_cells_are_pooled_by_what_is_expected():
    law = np.array([0.48, 0.48, 0.02, 0.01, 0.01])
    tally = Tally(5)
    tally.add(law, np.array([110.0, 130.0, 4.0, 4.0, 2.0]))
    pooled = Tally(3)
    pooled.add(np.array([0.48, 0.48, 0.04]), np.array([110.0, 130.0, 10.0]))
    assert 250 * 0.02 >= LEAST > 250 * 0.02 * 0.98  # the variance decides
    assert chi_square("test", tally).statistic == pytest.approx(chi_square("test", pooled).statistic)
    sure = Tally(2)
    sure.add(np.array([0.999, 0.001]), np.array([99.0, 1.0]))
    assert chi_square("test", sure).freedom == 0 and chi_square("test", sure).p_value == 1.0


def test_an_impossible_token_is_enough():
    tally = Tally(2)
    tally.add(np.array([1.0, 0.0]), np.array([99.0, 1.0]))
    tally.impossible = 1
    assert chi_square("test", tally).p_value == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("changing", [False, True])
def test_true_laws_are_rejected_as_often_as_stated(changing):
    """800 tests; a true rate of 5% gives more than 65 or fewer than 19 rejections with chance 1e-4."""
    dice = np.random.default_rng(3)
    rejected = 0
    for _ in range(800):
        laws, tally = dice.dirichlet(np.full(6, 0.4), size=120 if changing else 1), Tally(6)
        if changing:
            for law, cell in zip(laws, (laws.cumsum(1) > dice.random((120, 1))).argmax(1), strict=True):
                tally.add_one(law, cell)
        else:
            tally.add(laws[0], dice.multinomial(200, laws[0]).astype(float))
        rejected += chi_square("test", tally).p_value < 0.05
    assert 19 <= rejected <= 65


def test_a_shift_as_large_as_stated_is_found_in_nine_of_ten_cases():
    """Between halves of the law, where it is hardest to see; 500 cases, 0.9 give fewer than 423 with chance 1e-4."""
    dice, law = np.random.default_rng(4), np.full(6, 1 / 6)
    tally = Tally(6)
    tally.add(law, dice.multinomial(2000, law).astype(float))
    distance = chi_square("test", tally).detectable(1e-3)
    shifted = law + np.repeat([1, -1], 3) * distance / 3
    found = 0
    for _ in range(500):
        tally = Tally(6)
        tally.add(law, dice.multinomial(2000, shifted).astype(float))
        found += chi_square("test", tally).p_value < 1e-3
    assert 423 <= found <= 475
