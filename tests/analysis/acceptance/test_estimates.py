"""Estimators against the data sets D5 and D6 of theory.md 5, and against simulation; models against special cases."""

from math import isnan

import numpy as np
import pandas as pd
import pytest
from fixtures.rounds_tables import from_counts, simulate
from scipy.special import betaln

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


def test_beta_geometric_is_the_beta_law_integrated(make_rounds):
    """The likelihood at the fitted parameters equals the one by beta functions (rho far from 0)."""
    rounds = make_rounds({"p": [0] * 30 + [1] * 4 + [2] * 3 + [3] * 13}, 3)
    fitted = fit.beta_geometric(rounds)
    m, rho = fitted.parameters["m"], fitted.parameters["rho"]
    assert rho > 0.3
    a, b = m * (1 - rho) / rho, (1 - m) * (1 - rho) / rho
    s, d = rounds["accepted"], rounds["rejected"].astype(int)
    assert fitted.log_likelihood == pytest.approx(float((betaln(a + s, b + d) - betaln(a, b)).sum()), abs=1e-8)


def test_the_first_round_of_a_repeat_follows_none(make_rounds):
    repeats = [make_rounds({"a": [1, 2, 2]}, 2), make_rounds({"a": [0, 2, 0]}, 2, repeat=1)]
    later = fit.followers(pd.concat(repeats))[["repeat", "round", "after_full"]]
    assert later.values.tolist() == [[0, 1, False], [0, 2, True], [1, 1, False], [1, 2, True]]
    later = fit.followers(make_rounds({"a": [0, 1, 2, 0]}, 2, offered={"a": [0, 2, 2, 2]}))
    assert later["after_full"].tolist() == [False, False, True]  # a round without a proposal is not full


def test_degenerate_rounds_have_a_fit_without_mixing(make_rounds):
    full = fit.beta_geometric(make_rounds({"p": [2, 2]}, 2))
    assert full.parameters == {"m": 1.0, "rho": 0.0} and full.log_likelihood == 0
    never = fit.prompt_beta(make_rounds({"p": [0, 0]}, 2))
    assert never.parameters == {"m": 0.0, "rho": 0.0} and never.log_likelihood == 0


def test_comparison_ranks_by_aic():
    table = fit.compare_models(from_counts((50, 15, 10, 8, 17)))  # D5
    assert table["aic"].is_monotonic_increasing and table.index[0] == "beta_geometric"
    np.testing.assert_allclose(table["aic"], 2 * table["parameters"] - 2 * table["log_likelihood"])
    names = ["capped_geometric", "position", "beta_geometric", "prompt_beta", "markov"]
    assert table.loc[names, "parameters"].tolist() == [1, 4, 2, 2, 2]
    assert fit.compare_models(from_counts((40, 25, 15, 8, 12))).index[0] == "capped_geometric"  # D1
