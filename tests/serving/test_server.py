"""The simulated server against a schedule by hand, queueing theory, Little's law, and closed forms of saturation; the
adaptive policy against enumeration, its estimates, and steps by a cost model against the cost model itself.
"""

from dataclasses import replace
from itertools import islice, product

import numpy as np
import pytest
from oracles.queueing import capacity, mean_wait, saturation, shared_processor_s

from specdec.cost_model import DraftCost, SimulatedCost
from specdec.serving.server import (
    AdaptiveGamma,
    Arrival,
    FixedGamma,
    ServedText,
    StepSeconds,
    arriving,
    drawn_texts,
    serve,
)
from specdec.theory.capped_geometric import tokens_per_round


class Steps:
    """Steps of `fixed` + `each` x sequences + `token` x sequences x gamma; prefills of `prefilled` a token."""

    def __init__(self, fixed=1.0, each=0.0, token=0.0, prefilled=0.0):
        self.values = fixed, each, token, prefilled

    def prefill(self, prompts, tokens):
        return self.values[3] * tokens

    def step(self, batch, gamma, cached):
        fixed, each, token, _ = self.values
        return fixed + each * batch + token * batch * gamma


def text(*lengths, prompt=1):
    return ServedText(prompt, lengths)


def test_the_hand_computed_schedule_of_three_requests():
    """Two slots, gamma 1, steps of 1/2 + 1/4 a sequence, prefills of 1/8 a token.

    A arrives at 0 with a prompt of 3: prefill 0 - 0.25; alone 0.25 - 1 (2 tokens). B (0.5, prompt 2) and C (0.75,
    prompt 1) wait; at 1 B takes the slot: prefill 1 - 1.125, with A 1.125 - 2.125. A has finished (3 tokens), C comes
    without a prefill: 2.125 - 3.125 with B, which ends; C alone 3.125 - 3.875.
    """
    a, b, c = text(2, 1, 1, prompt=3), text(1, 1, prompt=2), text(1, 2, 1, prompt=1)
    arrivals = iter([Arrival(0.0, a), Arrival(0.5, b), Arrival(0.75, c)])
    found = serve(arrivals, FixedGamma(1), Steps(0.5, 0.25, 0.0, 0.125), slots=2)
    times = [(r.arrived, r.admitted, r.prefilled, r.first, r.finished, r.rounds) for r in found.requests]
    assert times == [
        (0.0, 0.0, 0.25, 1.0, 2.125, 2),
        (0.5, 1.0, 1.125, 2.125, 3.125, 2),
        (0.75, 2.125, 2.125, 3.125, 3.875, 2),
    ]
    assert [(s.start, s.seconds, s.batch, s.gamma, s.tokens) for s in found.steps] == [
        (0.25, 0.75, 1, 1, 2),
        (1.125, 1.0, 2, 1, 2),
        (2.125, 1.0, 2, 1, 2),
        (3.125, 0.75, 1, 1, 2),
    ]
    assert (found.ended, found.prefill_s) == (3.875, 0.375)
    assert found.area == found.sojourn_s == 2.125 + 2.625 + 3.125


def test_a_request_that_comes_to_an_idle_server_starts_when_it_comes():
    found = serve(iter([Arrival(0.0, text(1)), Arrival(5.0, text(1))]), FixedGamma(0), Steps(), slots=1)
    assert [(r.admitted, r.finished) for r in found.requests] == [(0.0, 1.0), (5.0, 6.0)]
    assert (found.area, found.ended) == (2.0, 6.0)


@pytest.mark.parametrize("rho", [0.5, pytest.param(0.8, marks=pytest.mark.slow)])
def test_one_slot_and_equal_texts_wait_as_in_m_d_1(rho):
    """Within 4 standard errors of 8 replications: a false alarm in about 200 (t, 7 degrees), the seeds are fixed."""
    means = []
    for seed in range(8):
        found = serve(arriving(rho, [text(1)], seed), FixedGamma(0), Steps(), slots=1, count=6000)
        means.append(np.mean([r.admitted - r.arrived for r in found.requests[1000:6000]]))
    means = np.array(means)
    assert means.mean() == pytest.approx(mean_wait(rho, 1.0, 1.0), abs=4 * means.std(ddof=1) / 8**0.5)
    assert means.mean() == pytest.approx(rho / (2 * (1 - rho)), rel=0.1)


@pytest.mark.slow
def test_many_slots_whose_step_grows_with_them_share_the_processor():
    """Steps that take a second for each sequence are processor sharing in small slices: s / (1 - rho), for short and
    for long requests alike, up to the slice.
    """
    rho, short, long = 0.6, text(*(1,) * 20), text(*(1,) * 80)
    found = serve(arriving(rho / 50, [short, long], 3), FixedGamma(0), Steps(0.0, 1.0), slots=10_000, count=6000)
    for each in (short, long):
        mine = [r.finished - r.arrived for r in found.requests[500:6000] if r.text is each]
        assert np.mean(mine) == pytest.approx(shared_processor_s(each.tokens, rho / 50, 50.0), rel=0.1)


def test_with_a_slot_for_everyone_and_steps_of_one_length_nobody_waits():
    """M/D/infinity: a request takes its own rounds and, on average, half a step until the next one begins."""
    found = serve(arriving(4.0, [text(*(1,) * 10)], 1), FixedGamma(0), Steps(), slots=10_000, count=4000)
    mean = np.mean([r.finished - r.arrived for r in found.requests[100:4000]])
    assert mean == pytest.approx(10.5, rel=0.01)


POLICIES = [FixedGamma(0), FixedGamma(3), AdaptiveGamma([1, 2, 4], Steps(1.0, 0.1, 0.1))]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.parametrize("rate", [0.02, 0.2, 2.0])  # nearly idle, busy, overloaded
def test_littles_law_holds_exactly(policy, rate):
    texts = drawn_texts(50, 0.7, 5, 12, 8, seed=1)
    found = serve(arriving(rate, texts, 7), policy, Steps(1.0, 0.1, 0.1, 0.01), slots=4, count=300)
    assert found.area == pytest.approx(found.sojourn_s, rel=1e-12)
    assert any(r.finished is None for r in found.requests) or rate < 2
    # Every token that was committed was committed in a step.
    assert sum(s.tokens for s in found.steps) == sum(r.position for r in found.requests)


@pytest.mark.parametrize("gamma", [0, 1, 4])
def test_saturation_is_the_closed_form(gamma):
    """Every length is 3: rounds commit min(3, gamma + 1). 32 texts of 60 fill 8 slots four times, always in step."""
    steps, tau = Steps(0.5, 0.25, 0.125), min(3, gamma + 1)
    found = serve(iter([Arrival(0.0, text(*(3,) * 60))] * 32), FixedGamma(gamma), steps, slots=8)
    rate = 32 * 60 / found.ended
    assert rate == pytest.approx(saturation(8, tau, steps.step(8, gamma, 0)), rel=1e-12)
    assert {step.batch for step in found.steps} == {8}
    assert 32 / found.ended == pytest.approx(capacity(8, 60 / tau, steps.step(8, gamma, 0), 0.0), rel=1e-12)


def test_a_prefill_stops_everyone():
    steps = Steps(0.5, prefilled=0.25)
    found = serve(iter([Arrival(0.0, text(1, 1, prompt=5))] * 12), FixedGamma(0), steps, slots=4)
    assert 12 / found.ended == pytest.approx(capacity(4, 2, 0.5, 1.0), rel=1e-12)


def test_equal_seeds_give_equal_requests_at_every_rate():
    texts = drawn_texts(20, 0.5, 5, 10, 4, seed=2)
    slow, fast = (list(islice(arriving(rate, texts, 3), 600)) for rate in (1.0, 4.0))
    assert [each.text for each in slow] == [each.text for each in fast]
    assert np.allclose([each.at for each in slow], [4 * each.at for each in fast])
    gaps = np.diff([each.at for each in islice(arriving(2.0, texts, 0), 20_000)])
    assert (gaps.mean(), gaps.std()) == (pytest.approx(0.5, rel=0.03), pytest.approx(0.5, rel=0.03))
    found = list(islice(arriving(5.0, [text(1)], 0, [10.0, 11.0, 14.0]), 4))
    assert [each.at for each in found] == pytest.approx([0.1, 0.4, 0.5, 0.8])


def test_drawn_texts_follow_their_law():
    texts = drawn_texts(4000, 0.8, 7, 25, 3, seed=0)
    assert np.mean([each.tokens for each in texts]) == pytest.approx(25, rel=0.05)
    rounds, tokens = sum(each.rounds(3) for each in texts), sum(each.tokens for each in texts)
    # Omega of theory.md 2.1, but for the rounds that the ends of the texts cut.
    assert tokens / rounds == pytest.approx((1 - 0.8**4) / 0.2, rel=0.08)
    assert max(length for each in texts for length in each.lengths) == 4


@pytest.mark.parametrize("lengths", [(), (0,), (2, 0)])
def test_texts_that_cannot_be_are_refused(lengths):
    with pytest.raises(ValueError, match="at least 1"):
        text(*lengths)


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
    steps = replace(STEPS, measured={0: ([1, 4], [1.0, 2.5]), 2: ([1, 4], [1.5, 6.0])})
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
