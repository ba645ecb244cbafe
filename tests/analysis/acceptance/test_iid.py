"""The i.i.d. tests: check values of theory.md 6.1, their size when the model is true, what each one sees; and the sizes
of the effects, by hand on D4 and on traces whose effect is known.
"""

from collections import Counter
from itertools import permutations
from math import isnan

import numpy as np
import pandas as pd
import pytest
from fixtures import simulated_rounds as simulation
from fixtures.rounds_tables import simulate
from oracles.rounds import replay_rounds

from specdec.analysis.acceptance import iid
from specdec.analysis.acceptance.estimates import estimate_alpha, followers, markov, prompt_beta, robust_error


def test_prompts_statistic_by_hand(d4):
    k, n = np.array([25, 4, 20, 9]), np.array([28, 12, 24, 16])
    expected = ((k - 0.725 * n) ** 2 / (n * 0.725 * 0.275)).sum()
    result = iid.prompts(d4)
    assert result.statistic == pytest.approx(expected) and result.n == 4
    assert result.p_value < 1e-3


def test_memory_leaves_out_cut_rounds_and_silent_ones(make_rounds):
    plain = make_rounds({"p": [3, 3, 2, 0, 0, 1]}, 3)
    disturbed = make_rounds(
        {"p": [3, 0, 3, 2, 0, 0, 0, 1]}, 3, censored={"p": [2]}, offered={"p": [3, 0, 3, 3, 3, 0, 3, 3, 3]}
    )
    assert iid.memory(disturbed) == iid.memory(plain)


@pytest.mark.slow
def test_sizes_when_the_model_is_true():
    """120 runs, 20 prompts of 12 rounds, alpha 0.7, gamma 4: each test at 5% rejects about 6 times.

    More than 18 has probability 1e-5 for a test of true size 5%, and none at all 2e-3: no test is deaf.
    """
    rejected = Counter()
    for run in range(120):
        rounds = simulation.iid(20, 12, 4, run, 0.7)
        results = iid.iid_tests(rounds, permutations=99, seed=run)
        results |= {"prompts_beta": iid.prompts_beta(rounds), "previous": iid.previous_round(rounds)}
        rejected.update({name: int(result.p_value < 0.05) for name, result in results.items()})
    assert len(rejected) == 7
    assert 1 <= min(rejected.values()) and max(rejected.values()) <= 18, rejected


def test_each_test_sees_its_own_effect(make_rounds):
    generator = np.random.default_rng(2)
    falling = simulate(np.tile([0.9, 0.7, 0.5], (10, 1)), 60, 3, generator)
    assert iid.depth(falling).p_value < 1e-4
    assert iid.trend(falling).statistic < -5
    rising = simulate(np.tile([0.5, 0.7, 0.9], (10, 1)), 60, 3, generator)
    assert iid.trend(rising).statistic > 5 and iid.mixing(rising).p_value < 1e-4
    sticky = make_rounds({f"p{i}": [3] * 10 + [0] * 10 for i in range(4)}, 3)
    memory = iid.memory(sticky)
    assert memory.p_value == 1 / 2000 and memory.statistic > 0
    assert iid.previous_round(sticky).p_value < 1e-4


COUNTED = ("depth", "trend", "mixing", "prompts")


@pytest.mark.parametrize(
    ("outputs", "gamma", "offered", "reasons"),
    [
        ({"a": [1, 0, 1], "b": [0, 1]}, 1, None, {"depth": "one depth", "trend": "one depth", "mixing": "two tokens"}),
        ({"a": [2, 0, 1, 2]}, 2, None, {"prompts": "only one prompt"}),
        ({"a": [2, 2], "b": [2, 2]}, 2, None, dict.fromkeys(COUNTED, "no rejection") | {"memory": "differ"}),
        ({"a": [0, 0], "b": [0]}, 2, None, dict.fromkeys(["depth", "mixing", "prompts"], "no draft token")),
        ({"a": [0, 0]}, 2, {"a": [0, 0]}, dict.fromkeys(COUNTED, "no position") | {"memory": "differ"}),
    ],
)
def test_tests_that_do_not_apply_say_why(make_rounds, outputs, gamma, offered, reasons):
    for name, result in iid.iid_tests(make_rounds(outputs, gamma, offered=offered)).items():
        assert isnan(result.p_value) == bool(result.reason), name
        assert reasons.get(name, "") in result.reason and (name not in reasons or result.reason), name


def test_variants_that_do_not_apply_say_why(make_rounds):
    one = make_rounds({"a": [0, 1, 0]}, 2)
    assert "one prompt" in iid.prompts_beta(one).reason
    assert "follows a full round" in iid.previous_round(one).reason
    two = make_rounds({"a": [1, 0], "b": [1, 1]}, 2)
    for others, reason in (
        ([], "one gamma"),
        ([make_rounds({"a": [1, 0], "c": [1, 1]}, 3)], "fewer than two prompts"),
        ([make_rounds({"a": [0], "b": [0]}, 3, offered={"a": [0], "b": [0]})], "no position was tested"),
    ):
        assert reason in iid.same_alpha(simulation.sums_by_gamma(pd.concat([two, *others])))[0].reason


def test_same_alpha_sees_depth_and_pairs_the_prompts(make_rounds):
    same = pd.concat([simulation.iid(40, 30, gamma, 0, 0.7) for gamma in (1, 2, 6)])
    result, _ = iid.same_alpha(simulation.sums_by_gamma(same), replicates=499)
    assert result.p_value > 0.05 and result.n == 40
    falling = pd.concat([simulation.falling(40, 30, gamma, 0, (60, 20), 0.8) for gamma in (1, 2, 6)])
    alphas = [estimate_alpha(falling[falling["gamma"] == gamma]).alpha for gamma in (1, 2, 6)]
    result, difference = iid.same_alpha(simulation.sums_by_gamma(falling), replicates=499)
    assert result.p_value == 1 / 500 and result.statistic == pytest.approx(max(alphas) - min(alphas))
    assert difference.estimate == pytest.approx(alphas[2] - alphas[0]) and difference.high < 0
    # The same texts at both gammas and nothing but differences between prompts: the pairs agree exactly.
    outputs = {"a": [1, 0], "b": [0, 0], "c": [1, 1]}
    paired = pd.concat([make_rounds(outputs, 2), make_rounds(outputs, 3)])
    assert iid.same_alpha(simulation.sums_by_gamma(paired), replicates=99)[0].p_value == 1


def test_implementation_agrees_with_its_replay_and_sees_drift():
    m = np.random.default_rng(3).beta(2, 1, size=(40, 60))
    rounds, drifting = (simulation.along_texts(chances, 4, 0) for chances in (m, 0.9 * m))
    names = sorted(rounds["prompt"].unique())
    replay = pd.DataFrame({"prompt": names, "tokens": 60, "rounds": [replay_rounds(each, 4) for each in m]})
    result, _ = iid.implementation(rounds, replay, replicates=499)
    assert result.p_value > 0.05 and result.n == 40
    assert result.statistic == pytest.approx(2400 / len(rounds) * replay["rounds"].sum() / 2400)
    result, size = iid.implementation(drifting, replay, replicates=499)
    assert result.p_value == 1 / 500 and size.estimate == result.statistic < 0.95
    exact = rounds.groupby("prompt")["committed"].agg(tokens="sum", rounds="size").reset_index()
    assert iid.implementation(rounds, exact, replicates=99)[0] == iid.IidTest(1.0, 1.0, 40)
    assert "one prompt" in iid.implementation(rounds[rounds["prompt"] == names[0]], replay)[0].reason
    with pytest.raises(ValueError, match="the replay lacks prompts, the first is 'p00000'"):
        iid.implementation(rounds, replay.iloc[1:])


@pytest.mark.parametrize("values", [[0, 3], [1, 0, 2], [2, 2, 0, 5], [0, 1, 1, 4, 2, 2]])
def test_the_variance_over_permutations_is_exact(values):
    deviation = np.array(values) - np.mean(values)
    sums = [float(np.dot(order[1:], order[:-1])) for order in map(np.array, permutations(deviation))]
    assert iid._permutation_variance(deviation) == pytest.approx(np.var(sums), abs=1e-12)


def test_many_rounds_have_the_p_value_that_permutations_give(make_rounds, monkeypatch):
    """The normal law of many pairs beside 1999 drawn permutations, where neighbours resemble each other a little."""
    dice = np.random.default_rng(3)
    values = [np.repeat(dice.integers(5, size=60), dice.geometric(0.88, 60))[:60] for _ in range(12)]
    outputs = {f"p{prompt}": counts.tolist() for prompt, counts in enumerate(values)}
    drawn = iid.memory(make_rounds(outputs, 4))
    monkeypatch.setattr(iid, "MANY_PAIRS", 1)
    normal = iid.memory(make_rounds(outputs, 4))
    assert (normal.statistic, normal.n) == (drawn.statistic, drawn.n)
    assert normal.p_value == pytest.approx(drawn.p_value, abs=0.03) and normal.p_value < 0.05


def test_sizes_of_d4_are_those_of_the_estimators(d4):
    sizes = iid.ratio_effects(d4, replicates=200)
    assert sizes["prompts"].estimate == pytest.approx(4.823406, abs=5e-7)
    parameters = markov(followers(d4)).parameters
    assert sizes["previous_round"].estimate == pytest.approx(parameters["alpha_1"] - parameters["alpha_0"])
    squares = sum(((s - s.mean()) ** 2).sum() for _, s in d4.groupby("prompt")["accepted"])
    assert sizes["memory"].estimate == pytest.approx((-24.90625 + 6.96875) / squares)
    first = (d4["accepted"] > 0).mean()
    deeper = d4[d4["accepted"] > 0]
    beyond = (deeper["accepted"] - 1).sum() / (deeper["accepted"] - 1 + deeper["rejected"]).sum()
    assert sizes["depth"].estimate == pytest.approx(beyond - first)
    rho = iid.correlations(d4, refits=20)["prompts_beta"]
    assert rho.estimate == pytest.approx(0.149504, abs=2e-6) == prompt_beta(d4).parameters["rho"]


def test_intervals_hold_known_effects():
    """200 prompts: Beta(6, 2) between them (rho 1/9), or acceptance that falls by a factor per depth."""
    differing = simulation.heterogeneous(200, 30, 4, 0, (6, 2))
    between = iid.correlations(differing, refits=30)["prompts_beta"]
    assert between.low < 1 / 9 < between.high and between.high - between.low < 0.1
    sizes = iid.ratio_effects(differing, replicates=200)
    design = robust_error(differing)[1]
    assert sizes["prompts"].estimate == pytest.approx(design) and sizes["prompts"].low > 1.5
    assert sizes["memory"].low < 0 < sizes["memory"].high
    mixing = iid.correlations(simulation.mixing(200, 30, 4, 0, 0.7, 0.2), refits=30)["mixing"]
    assert mixing.low < 0.2 < mixing.high
    falling = iid.ratio_effects(simulation.falling(200, 30, 4, 0, (8e5, 2e5), 0.9), replicates=200)
    assert falling["trend"].high < 0 and falling["depth"].high < 0
