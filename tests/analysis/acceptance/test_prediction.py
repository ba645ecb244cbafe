"""Prediction on held-out prompts: the recursion against theory, errors on simulated traces, what is said."""

from itertools import product
from math import isnan, prod

import numpy as np
import pandas as pd
import pytest
from fixtures import simulated_rounds as simulation
from oracles.rounds import markov_tokens_per_round
from scipy.stats import beta as beta_law

from specdec.analysis.acceptance import laws
from specdec.analysis.acceptance import prediction as P
from specdec.analysis.acceptance.prediction_section import prediction_in_words
from specdec.analysis.rounds import Arms
from specdec.theory.capped_geometric import tokens_per_round


@pytest.mark.parametrize(("a01", "a11"), [(0.3, 0.8), (0.7, 0.4), (0.5, 0.5)])
def test_a_markov_text_takes_the_rounds_of_all_its_possible_agreements(a01, a11):
    """Every text of 8 tokens, weighted by its chance, walked round by round; the token before it agreed."""
    size = 8

    def rounds_of(bits, gamma):
        """bits: the token that nobody drafted, before the text, and those of the text."""
        position, rounds = 1, 0
        while position <= size:
            reach = position
            while reach <= size and reach - position < gamma and bits[reach]:
                reach += 1
            position, rounds = reach + 1, rounds + 1
        return rounds

    for gamma in (1, 2, 4):
        law = laws.markov_law(np.array([a01]), np.array([a11]), gamma)
        expected = laws.rounds_by_law(law, np.ones((1, gamma + 1)), gamma, np.array([size]))[0, 0]
        summed = 0.0
        for bits in product((0, 1), repeat=size + 1):
            chances = [a11 if before else a01 for before in (1, *bits)]
            weight = prod(chance if bit else 1 - chance for chance, bit in zip(chances, bits, strict=False))
            summed += weight * rounds_of(bits, gamma)
        assert expected == pytest.approx(summed, abs=1e-12)


@pytest.mark.slow
def test_a_model_that_is_true_does_not_miss():
    """I.i.d. acceptance, 100 prompts: every model contains it; 1% is several times the sampling error of the ratio."""
    rounds = pd.concat([simulation.iid(100, 120, gamma, 1, 0.75, tokens=120) for gamma in (1, 4, 8)])
    result = P.predict(Arms.of(rounds), replicates=100, refits=30)
    table = result.table[result.table["model"] != "stretches"]
    assert table["model"].nunique() == 6 and (table["error"].abs() < 0.03).all()
    formula = table[table["model"] == "capped_geometric.mle"]
    assert ((formula["error_low"] < 0) & (formula["error_high"] > 0)).all()
    assert "does not miss significantly at any gamma" in prediction_in_words(result)


def test_each_model_predicts_best_where_it_is_true(monkeypatch):
    monkeypatch.setattr(P, "FEW_ROUNDS", 10**9)  # for `stretches`, which knows several causes of dependence
    markov = pd.concat([simulation.markov(60, 200, gamma, 2, 0.4, 0.9) for gamma in (1, 4, 8)])
    differing = pd.concat([simulation.heterogeneous(200, 120, g, 3, (2, 1), tokens=120) for g in (1, 4, 8)])
    falling = pd.concat([simulation.falling(200, 200, g, 0, (12, 3), 0.9, tokens=200) for g in (1, 4, 8)])
    for rounds, model in ((markov, "markov"), (differing, "prompt_beta"), (falling, "position")):
        models = P.predict(Arms.of(rounds), replicates=10, refits=0).models.sort_values("mean_error")
        assert models["model"].iloc[0] == model and models["mean_error"].iloc[0] < 0.02


def test_replicates_draw_prompts_within_their_half():
    side = np.array([0, 1] * 10)
    weights = P._weights(side, 50)
    assert (weights[0] == 1).all() and (weights[:, side == 0].sum(axis=1) == 10).all()


def test_a_prompt_is_predicted_from_the_others(make_rounds):
    """Two prompts are a half each: one accepts everything, the other nothing, and each is foretold the other's."""
    rounds = make_rounds({"all": [4] * 12, "none": [0] * 12}, 4)
    found = P.predict(Arms.of(rounds), replicates=10, refits=0).table.set_index("model")
    # 60 tokens written one by one, and 12 tokens in rounds of five; measured are 72 tokens in 24 rounds.
    assert found.at["capped_geometric.mle", "predicted"] == pytest.approx(72 / (60 + 3))
    assert found.at["capped_geometric.mle", "error"] == pytest.approx(72 / 63 / 3 - 1)


def test_the_first_round_of_a_text_follows_no_rejection(make_rounds):
    """Every text ends in rejections, after which nothing is accepted: a01 is 0, however well texts begin."""
    rounds = make_rounds({f"p{i}": [2, 0, 0, 0, 0] for i in range(4)}, 3)
    found = P.predict(Arms.of(rounds), replicates=10, refits=0).table.set_index("model")
    # a11: of depths 2 and 3 one was accepted and one not. A text begins as after a round without a rejection.
    a11 = 1 / 2
    begin, tokens = a11**2, 7
    after_full = [0.0]  # expected rounds of 0, 1, ... tokens there; after a rejection n tokens take n rounds
    for n in range(1, tokens + 1):
        left = [max(0, n - k - 1) for k in range(4)]
        chances = [1 - begin, begin * (1 - a11), begin * a11 * (1 - a11)]
        rejected = sum(chance * left[k] for k, chance in enumerate(chances))
        after_full.append(1 + rejected + begin * a11**2 * after_full[left[3]])
    assert found.at["markov", "predicted"] == pytest.approx(tokens / after_full[tokens])


@pytest.mark.parametrize(("a01", "a11"), [(0.5, 0.9), (0.9, 0.7)])
def test_recursion_with_memory_reaches_the_long_run_value(a01, a11):
    law = laws.markov_law(np.array([a01]), np.array([a11]), 5)
    rounds = laws.rounds_by_law(law, np.ones((1, 6)), 5, np.array([1000, 2000]))  # beyond EXACT: by their slope
    assert 1000 / (rounds[0, 1] - rounds[0, 0]) == pytest.approx(markov_tokens_per_round(a01, a11, 5), abs=5e-6)


def test_shorter_offers_are_part_of_a_round():
    """Half of the rounds offer nothing, the others two tokens: 1 + (h1 + h1 h2) / 2 tokens per round."""
    rejected, whole = laws.round_law(np.array([0.8, 0.5]), np.array([1.0, 0.5, 0.5]), 2)
    assert (rejected + whole).sum() == pytest.approx(1)
    tokens = ((rejected + whole) * np.arange(1, 4)).sum()
    assert tokens == pytest.approx(1 + (0.8 + 0.4) / 2)


def test_offers_are_censored_by_the_end_of_the_text(make_rounds):
    rounds = make_rounds({"p": [2, 0, 0, 1]}, 2, offered={"p": [2, 0, 2, 1]})  # the last had room for one only
    sums = {name: table.sum(axis=0)[None] for name, table in P._Halves({2: rounds}, None, ["p"]).data.items()}
    # Of four rounds with room for one token, three offered one; of the two of these with room for two, both did.
    np.testing.assert_allclose(laws.offer_chances(sums), [[1, 0.75, 0.75]])


def test_quadrature_has_the_moments_of_the_beta_law():
    a, b = np.array([6.0, 0.4, 6e6, 1.0]), np.array([2.0, 0.3, 2e6, 1.0])
    nodes, weight = laws.beta_quadrature(a, b, 12)
    np.testing.assert_allclose(weight.sum(axis=1), 1)
    for power in (1, 2, 5, 20):
        expected = [beta_law(*each).moment(power) for each in zip(a, b, strict=True)]
        np.testing.assert_allclose((weight * nodes**power).sum(axis=1), expected, rtol=1e-6)
    # Prompts that accept all or nothing: a correlation of 1 between their tests, and the law's mass at 0 and at 1.
    m, size = np.array([0.25, 1e-9]), 1e-9
    nodes, weight = laws.beta_quadrature(m * size, (1 - m) * size, 12)
    assert np.isfinite(nodes).all() and np.isfinite(weight).all()
    assert weight[0] @ nodes[0] == pytest.approx(0.25, abs=1e-6)
    assert weight[0] @ (nodes[0] * (1 - nodes[0])) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("rounds", "reason"),
    [
        (simulation.iid(1, 5, 2, 0, 0.5), "one prompt cannot be split"),
        (simulation.iid(3, 5, 2, 0, 0.5).assign(method="baseline"), "no round of a drafter"),
        (simulation.iid(3, 5, 2, 0, 0.5).assign(offered=0, accepted=0, rejected=False), "no draft token was tested"),
        (pd.concat([simulation.iid(3, 5, 2, 0, 0.5).assign(method=m) for m in "ab"]), "several drafters"),
    ],
)
def test_rounds_that_allow_no_prediction_are_explained(rounds, reason):
    with pytest.raises(P.Undetermined, match=reason):
        P.predict(Arms.of(rounds))


def test_few_prompts_one_gamma_and_no_rejection_can_be_predicted():
    result = P.predict(Arms.of(simulation.iid(3, 10, 3, 0, 1.0)))
    assert result.refits == 0 and result.table["error_low"].isna().all()
    assert "without intervals no miss can be called real" in prediction_in_words(result)
    left_out = {"capped_geometric.text", "capped_geometric.short", "replay", "stretches", "stretches.ends", "markov"}
    assert set(result.left_out) == left_out
    part = result.table.set_index("model")
    assert part.loc["position", "predicted"] == pytest.approx(tokens_per_round(1.0, 3))
    assert not isnan(part.loc["prompt_beta", "predicted"])


def test_a_model_that_half_of_the_prompts_does_not_determine_is_left_out(make_rounds):
    rounds = make_rounds({f"p{prompt}": [2 if prompt % 2 else 0] * 3 for prompt in range(6)}, 2)
    prediction = P.predict(Arms.of(rounds), replicates=50, refits=0)
    assert len(prediction.table) and prediction.table["error"].notna().all()
    assert set(prediction.models["model"]) == set(prediction.table["model"]) and prediction_in_words(prediction)


def test_a_law_of_prompts_that_tested_nothing_is_never_to_accept():
    law = laws.LAWS["prompt_beta"]({"units": np.zeros((1, 30)), "at_risk": np.zeros((1, 4))})
    assert law.weight[0] @ law.acceptance[0, :, 0, 0] == pytest.approx(0.0, abs=1e-6)
