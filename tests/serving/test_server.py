"""The simulated server against a schedule by hand, queueing theory, Little's law, and closed forms of saturation."""

from itertools import islice

import numpy as np
import pytest
from oracles.queueing import capacity, mean_wait, saturation, shared_processor_s

from specdec.serving.arrivals import Arrival, ServedText, arriving, drawn_texts
from specdec.serving.policies import AdaptiveGamma, FixedGamma
from specdec.serving.server import serve


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
