"""Simulated traces: valid rounds tables, with the laws that they claim."""

import numpy as np
import pytest

from specdec.analysis.acceptance import simulation
from specdec.analysis.acceptance.estimates import estimate_alpha, hazards
from specdec.analysis.rounds import check_rounds
from specdec.theory.capped_geometric import finite_tokens_per_round, tokens_per_round
from specdec.theory.dependence import greedy_rounds, markov_tokens_per_round, replay_rounds

LAWS = {
    "iid": lambda **size: simulation.iid(seed=0, alpha=0.7, **size),
    "heterogeneous": lambda **size: simulation.heterogeneous(seed=0, beta=(6, 2), **size),
    "falling": lambda **size: simulation.falling(seed=0, beta=(6, 2), decay=0.9, **size),
    "mixing": lambda **size: simulation.mixing(seed=0, m=0.7, rho=0.2, **size),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("tokens", [None, 20])
def test_every_law_gives_a_valid_table(law, tokens):
    table = LAWS[law](prompts=5, rounds=20, gamma=3, tokens=tokens)
    check_rounds(table)
    assert table["prompt"].nunique() == 5
    sizes = table.groupby("prompt")["committed"].sum()
    assert (sizes == 20).all() if tokens else (table.groupby("prompt").size() == 20).all()
    assert (table["tokens_left"] == table.groupby("prompt")["committed"].transform(lambda s: s[::-1].cumsum())).all()
    assert LAWS[law](prompts=5, rounds=20, gamma=3, tokens=tokens).equals(table)  # the seed decides


def test_iid_traces_follow_the_model():
    """30,000 rounds: alpha and tokens per round within 5 standard errors (false alarm 6e-7 each)."""
    table = simulation.iid(300, 100, 5, 1, 0.8)
    estimate = estimate_alpha(table)
    assert abs(estimate.alpha - 0.8) < 5 * estimate.se
    assert abs(table["committed"].mean() - 3.68928) < 5 * 1.9657 / np.sqrt(30_000)


def test_texts_of_a_length_take_the_rounds_of_the_finite_recursion():
    """1,000 texts of 32 tokens; the rounds of one have a standard deviation below 2: 5 errors are 0.32."""
    table = simulation.iid(1000, 32, 5, 2, 0.8, tokens=32)
    expected = 32 / finite_tokens_per_round(0.8, 5, [32])
    assert expected == pytest.approx(9.180389, abs=5e-7)
    assert abs(len(table) / 1000 - expected) < 0.32


def test_acceptance_falls_with_depth_as_told():
    """Hazards within 5 standard errors; nobody differs, because Beta(a, b) is narrow."""
    table = hazards(simulation.falling(200, 200, 4, 3, (8e6, 2e6), 0.9))
    expected = 0.8 * 0.9 ** np.arange(4)
    error = np.sqrt(expected * (1 - expected) / table["at_risk"])
    assert (np.abs(table["acceptance"] - expected) < 5 * error).all()
    short, long = (simulation.falling(40, 400, gamma, 3, (6, 2), 0.9) for gamma in (1, 4))
    alphas = simulation.first_alphas(40, 3, (6, 2))
    for part in (short, long):  # the same prompts at every gamma
        rate = part.assign(hit=part["accepted"] > 0).groupby("prompt")["hit"].mean()
        assert np.corrcoef(rate, alphas)[0, 1] > 0.95


def test_mixing_has_the_first_hazard_of_its_mean_and_rises():
    table = hazards(simulation.mixing(200, 100, 3, 4, 0.6, 0.3))
    assert table["acceptance"].tolist() == pytest.approx([0.6, 0.72, 1.02 / 1.3], abs=0.03)  # (m(1-r) + jr)/(1-r + jr)


def test_markov_texts_reach_the_long_run_value():
    """200 texts of 600 tokens at THEORY 4.6's (.5, .9, 5): within 2%, several times the sampling error."""
    table = simulation.markov(200, 600, 5, 5, 0.5, 0.9)
    check_rounds(table)
    assert table["committed"].sum() / len(table) == pytest.approx(3.680727, rel=0.02)
    assert markov_tokens_per_round(0.5, 0.9, 5) == pytest.approx(3.680727, abs=5e-7)


def test_rounds_along_texts_are_those_of_the_replay():
    bits = np.array([[1, 1, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0]] * 2)
    for gamma in (1, 2, 3, 5):
        table = simulation.along_texts(bits.astype(float), gamma, 0)
        check_rounds(table)
        assert len(table) == 2 * greedy_rounds(bits[0], gamma)
    m = np.tile([0.9, 0.5, 1, 0.2, 0.8, 0.7], (4000, 1))
    mean = len(simulation.along_texts(m, 2, 1)) / 4000
    assert replay_rounds(m[0], 2) == pytest.approx(3.14)
    assert mean == pytest.approx(3.14, abs=0.06)  # 5 standard errors of a deviation below 0.8


def test_without_a_rejection_every_round_is_full():
    table = simulation.iid(2, 10, 4, 0, 1.0)
    assert (table["accepted"] == 4).all() and tokens_per_round(1.0, 4) == 5
