"""The sizes behind the tests: by hand on D4, and on traces whose effect is known."""

import pandas as pd
import pytest
from fixtures import simulated_rounds as simulation

from specdec.analysis.acceptance import effects
from specdec.analysis.acceptance.estimates import estimate_alpha, robust_error
from specdec.analysis.acceptance.models import followers, markov, prompt_beta


def test_sizes_of_d4_are_those_of_the_estimators(d4):
    sizes = effects.ratio_effects(d4, replicates=200)
    assert sizes["prompts"].estimate == pytest.approx(4.823406, abs=5e-7)
    parameters = markov(followers(d4)).parameters
    assert sizes["previous_round"].estimate == pytest.approx(parameters["alpha_1"] - parameters["alpha_0"])
    squares = sum(((s - s.mean()) ** 2).sum() for _, s in d4.groupby("prompt")["accepted"])
    assert sizes["memory"].estimate == pytest.approx((-24.90625 + 6.96875) / squares)
    first = (d4["accepted"] > 0).mean()
    deeper = d4[d4["accepted"] > 0]
    beyond = (deeper["accepted"] - 1).sum() / (deeper["accepted"] - 1 + deeper["rejected"]).sum()
    assert sizes["depth"].estimate == pytest.approx(beyond - first)
    rho = effects.correlations(d4, refits=20)["prompts_beta"]
    assert rho.estimate == pytest.approx(0.149504, abs=2e-6) == prompt_beta(d4).parameters["rho"]


def test_intervals_hold_known_effects():
    """200 prompts: Beta(6, 2) between them (rho 1/9), or acceptance that falls by a factor per depth."""
    differing = simulation.heterogeneous(200, 30, 4, 0, (6, 2))
    between = effects.correlations(differing, refits=30)["prompts_beta"]
    assert between.low < 1 / 9 < between.high and between.high - between.low < 0.1
    sizes = effects.ratio_effects(differing, replicates=200)
    design = robust_error(differing)[1]
    assert sizes["prompts"].estimate == pytest.approx(design) and sizes["prompts"].low > 1.5
    assert sizes["memory"].low < 0 < sizes["memory"].high
    mixing = effects.correlations(simulation.mixing(200, 30, 4, 0, 0.7, 0.2), refits=30)["mixing"]
    assert mixing.low < 0.2 < mixing.high
    falling = effects.ratio_effects(simulation.falling(200, 30, 4, 0, (8e5, 2e5), 0.9), replicates=200)
    assert falling["trend"].high < 0 and falling["depth"].high < 0


def test_differences_between_gammas_and_the_ratio_to_the_replay(make_rounds):
    rounds = pd.concat([simulation.falling(50, 30, gamma, 0, (60, 20), 0.8) for gamma in (1, 4)])
    difference = effects.alpha_difference(simulation.sums_by_gamma(rounds), replicates=200)
    alphas = [estimate_alpha(rounds[rounds["gamma"] == gamma]).alpha for gamma in (1, 4)]
    assert difference.estimate == pytest.approx(alphas[1] - alphas[0]) and difference.high < 0
    rounds = make_rounds({"a": [2, 2, 2, 2], "b": [2, 2, 2, 2]}, 3)
    replay = pd.DataFrame({"prompt": ["a", "b"], "tokens": 12, "rounds": 6.0})
    assert effects.replay_ratio(rounds, replay, replicates=20).estimate == pytest.approx(3 / 2)
