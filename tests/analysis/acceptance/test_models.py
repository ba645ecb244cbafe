"""Likelihood models against special cases; theory.md 5.4 has the parameters of known data sets."""

import numpy as np
import pandas as pd
import pytest
from fixtures.rounds_tables import from_counts
from scipy.special import betaln

from specdec.analysis.acceptance import models


def test_beta_geometric_is_the_beta_law_integrated(make_rounds):
    """The likelihood at the fitted parameters equals the one by beta functions (rho far from 0)."""
    rounds = make_rounds({"p": [0] * 30 + [1] * 4 + [2] * 3 + [3] * 13}, 3)
    fitted = models.beta_geometric(rounds)
    m, rho = fitted.parameters["m"], fitted.parameters["rho"]
    assert rho > 0.3
    a, b = m * (1 - rho) / rho, (1 - m) * (1 - rho) / rho
    s, d = rounds["accepted"], rounds["rejected"].astype(int)
    assert fitted.log_likelihood == pytest.approx(float((betaln(a + s, b + d) - betaln(a, b)).sum()), abs=1e-8)


def test_the_first_round_of_a_repeat_follows_none(make_rounds):
    repeats = [make_rounds({"a": [1, 2, 2]}, 2), make_rounds({"a": [0, 2, 0]}, 2, repeat=1)]
    later = models.followers(pd.concat(repeats))[["repeat", "round", "after_full"]]
    assert later.values.tolist() == [[0, 1, False], [0, 2, True], [1, 1, False], [1, 2, True]]
    later = models.followers(make_rounds({"a": [0, 1, 2, 0]}, 2, offered={"a": [0, 2, 2, 2]}))
    assert later["after_full"].tolist() == [False, False, True]  # a round without a proposal is not full


def test_degenerate_rounds_have_a_fit_without_mixing(make_rounds):
    full = models.beta_geometric(make_rounds({"p": [2, 2]}, 2))
    assert full.parameters == {"m": 1.0, "rho": 0.0} and full.log_likelihood == 0
    never = models.prompt_beta(make_rounds({"p": [0, 0]}, 2))
    assert never.parameters == {"m": 0.0, "rho": 0.0} and never.log_likelihood == 0


def test_comparison_ranks_by_aic():
    table = models.compare_models(from_counts((50, 15, 10, 8, 17)))  # D5
    assert table["aic"].is_monotonic_increasing and table.index[0] == "beta_geometric"
    np.testing.assert_allclose(table["aic"], 2 * table["parameters"] - 2 * table["log_likelihood"])
    names = ["capped_geometric", "position", "beta_geometric", "prompt_beta", "markov"]
    assert table.loc[names, "parameters"].tolist() == [1, 4, 2, 2, 2]
    assert models.compare_models(from_counts((40, 25, 15, 8, 12))).index[0] == "capped_geometric"  # D1
