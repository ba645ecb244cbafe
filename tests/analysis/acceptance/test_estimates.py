"""Estimators against the data sets D5 and D6 of theory.md 5, and against simulation."""

from math import isnan

import numpy as np
import pytest
from fixtures.rounds_tables import simulate

from specdec.analysis.acceptance import estimates as fit
from specdec.theory.capped_geometric import tokens_per_round


def test_hazards_count_who_was_at_risk(make_rounds):
    rounds = make_rounds({"p": [2, 0, 1]}, 3, censored={"p": [1]}, offered={"p": [2, 3, 3, 3]})
    table = fit.hazards(rounds)  # a full round of 2, rejections at 1 and 2, a cut after 1
    assert table["at_risk"].tolist() == [4, 2, 0]
    assert table["rejected"].tolist() == [1, 1, 0]
    assert isnan(table.loc[3, "acceptance"])
    assert fit.kaplan_meier_tokens(table) == pytest.approx(1 + 0.75 + 0.75 * 0.5)


def test_nothing_tested_gives_nan_and_all_accepted_gives_a_one_sided_interval(make_rounds):
    nothing = make_rounds({"p": [0, 0]}, 3, offered={"p": [0, 0]})
    assert isnan(fit.estimate_alpha(nothing).alpha) and len(fit.hazards(nothing)) == 0
    full = fit.estimate_alpha(make_rounds({"p": [3] * 10}, 3))
    assert full.alpha == full.wilson.high == 1 and 0.8 < full.wilson.low < 1
    assert all(isnan(value) for value in fit.robust_error(make_rounds({"p": [1, 0]}, 3)))
    silent = make_rounds({"p": [0, 2, 0]}, 3, offered={"p": [0, 3, 0]})  # rounds without a proposal say nothing
    estimate = fit.estimate_alpha(silent)
    assert (estimate.accepted, estimate.rejected) == (2, 1) and fit.hazards(silent)["at_risk"].tolist() == [1, 1, 1]


def test_estimate_is_right_under_caps_and_cuts():
    """40,000 rounds at 0.7 with mixed caps, a third cut after one token: within 5 se (false alarm 6e-7)."""
    generator = np.random.default_rng(0)
    rounds = simulate(np.full(4, 0.7), 10_000, 5, generator)
    cut = (generator.random(len(rounds)) < 1 / 3) & (rounds["accepted"] >= 1)
    rounds.loc[cut, ["accepted", "rejected", "truncation"]] = [1, False, "end_token"]
    estimate = fit.estimate_alpha(rounds)
    assert abs(estimate.alpha - 0.7) < 5 * estimate.se
    expected = tokens_per_round(0.7, 5)
    assert abs(fit.kaplan_meier_tokens(fit.hazards(rounds)) - expected) < 5 * fit.omega_error(estimate, 5)
    naive = rounds["accepted"].sum() / len(rounds) / 5
    assert abs(naive - 0.7) > 0.2  # accepted over offered is another quantity
