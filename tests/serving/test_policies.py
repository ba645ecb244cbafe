"""The adaptive policy against enumeration, its estimates, and steps by a cost model against the cost model itself."""

from dataclasses import replace
from itertools import product

import pytest

from specdec.cost_model import DraftCost, SimulatedCost
from specdec.serving.arrivals import arriving, drawn_texts
from specdec.serving.policies import AdaptiveGamma, FixedGamma
from specdec.serving.server import serve
from specdec.serving.step_seconds import StepSeconds
from specdec.theory.capped_geometric import tokens_per_round

COST = SimulatedCost(
    name="test", source="test", fixed_s=2e-3, token_s=1e-6, weights_s=3e-3, cached_s=2e-8, row_s=3e-5, key_s=1e-9,
    tile=8, overlap=False, lookup_s=1e-4, lookup_share=0.01, overhead_s=5e-4,
    draft=DraftCost(fixed_s=1e-3, step_s=2e-4, cached_s=1e-9),
)  # fmt: skip
STEPS = StepSeconds(COST, model_drafts=True, draft_growth=0.0, overhead_growth=0.0)
GAMMAS = (1, 2, 4, 8)


def adaptive(gammas, **values) -> AdaptiveGamma:
    """Return a policy with other constants."""
    return type("Adaptive", (AdaptiveGamma,), values)(gammas, STEPS)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("batch", "gamma"), [(1, 0), (1, 3), (5, 2), (16, 4)])
def test_a_step_is_what_the_cost_model_charges(batch, gamma, overlap):
    cost = SimulatedCost(**{**vars(COST), "overlap": overlap})
    call = cost.seconds(batch * (gamma + 1), 300, batch)
    draft = cost.draft.seconds(gamma, 300)
    for growth in (0.0, 0.25, 1.0):
        for model in (True, False):
            steps = StepSeconds(cost, model, growth, growth)
            times = 1 + growth * (batch - 1)
            looked_up = (cost.lookup_s * times + cost.lookup_share * call) * (gamma > 0)
            expected = call + (draft * times if model else looked_up) + cost.overhead_s * times
            assert steps.step(batch, gamma, 300 * batch) == pytest.approx(expected, rel=1e-12)
    assert STEPS.prefill(2, 700) == pytest.approx(COST.seconds(700, 0, 2)) and STEPS.prefill(1, 0) == 0


def test_measured_steps_are_interpolated_and_prefills_are_modelled():
    steps = replace(STEPS, measured={(1, 0): 1.0, (4, 0): 2.5, (1, 2): 1.5, (4, 2): 6.0})
    assert [steps.step(batch, 0, 0) for batch in (1, 2, 4, 8)] == [1.0, 1.5, 2.5, 5.0]
    assert steps.step(3, 2, 0) == 4.5
    assert steps.prefill(2, 700) == STEPS.prefill(2, 700)


@pytest.mark.parametrize(("prior", "batch"), [*product((0.2, 0.5, 0.8, 0.95), (1, 4, 16, 64, 256, 1024))])
def test_the_first_choice_is_the_best_of_all_gammas_by_the_prior(prior, batch):
    policy = adaptive(GAMMAS, prior=prior)
    rates = {g: tokens_per_round(prior, g) / STEPS.step(batch, g, 300 * batch) for g in (0, *GAMMAS)}
    assert policy.gamma(batch, 300 * batch) == max(rates, key=rates.__getitem__)


def test_acceptance_is_learned_at_each_depth_and_the_end_of_a_text_tells_nothing():
    policy = adaptive([2], prior=0.5, prior_rounds=1e-9, memory_rounds=1e12)
    # Lengths 3, 2, 1, and a text whose last token is the first of its round.
    policy.saw(2, [3, 2, 1, 1], [9, 9, 9, 1])
    assert policy.acceptance == pytest.approx([2 / 3, 1 / 2])
    policy.saw(2, [2], [2])  # the second depth was not told: the text was at its end
    assert policy.acceptance == pytest.approx([3 / 4, 1 / 2])
    policy.saw(0, [1, 1], [5, 5])
    assert policy.acceptance == pytest.approx([3 / 4, 1 / 2])
    policy = adaptive([1], prior=0.9, prior_rounds=20, memory_rounds=50)
    for _ in range(100):
        policy.saw(1, [1, 1, 1, 1, 2], [9] * 5)
    assert policy.acceptance == pytest.approx([0.2], abs=0.01)
    policy = adaptive([2, 4], prior=0.01, probe_every=5)
    assert [policy.gamma(64, 0) for _ in range(11)] == [0, 0, 0, 0, 2, 0, 0, 0, 0, 2, 0]


def test_adaptive_is_nowhere_much_worse_than_the_best_fixed_gamma():
    """Time per token at light and at heavy load: light load wants drafts, full batches of these costs do not."""
    cost = SimulatedCost(**{**vars(COST), "row_s": 1e-3})
    steps = StepSeconds(cost, True, 0.0, 0.0)
    texts = drawn_texts(100, 0.6, 50, 40, 4, seed=1)
    best = {}
    for rate in (0.5, 60.0):
        times = {}
        for policy in (FixedGamma(0), FixedGamma(2), FixedGamma(4), AdaptiveGamma([2, 4], steps)):
            found = serve(arriving(rate, texts, 0), policy, steps, slots=16, count=300)
            kept = found.requests[50:300]
            times[policy.name] = sum(each.finished - each.prefilled for each in kept)
        fixed = min((name for name in times if name != "adaptive"), key=times.__getitem__)
        best[rate] = fixed
        assert times["adaptive"] <= 1.05 * times[fixed]
    assert best[0.5] != "none" and best[60.0] == "none"
