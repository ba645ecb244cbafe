"""Account and forecast of load tests, against a simulated server whose limits are known, and a published one."""

import json
from functools import cache
from itertools import product

import numpy as np
import pandas as pd
import pytest

from specdec.analysis.account.load_account import explain, gain_factors
from specdec.analysis.cost.load_forecast import PlainCurve, Speculating, Unknowns, forecast, off_load
from specdec.analysis.read.importers import read_loads
from specdec.analysis.read.load_points import COLUMNS, Gauges, LoadTests, ServerFacts
from specdec.errors import UsageError

PROMPT, OUTPUT, GAMMA, ACCEPTED = 60, 240, 5, 0.65


@cache
def simulated(
    server: str,
    per_request: float,
    most: int = 10**9,
    gamma: int = 0,
    token: float = 0.05,
    prompt: int = PROMPT,
    attended: float = 0.0,
) -> pd.DataFrame:
    """Load points of a closed loop of clients: a step takes 10 ms and `token` ms for each token in it, prompts too,
    at least 0.05 ms for each; `per_request` ms for each request that runs, `attended` for each 1,000 tokens of their
    texts; a draft 2 ms. No more than `most` run; the others wait, first come first served. A draft token passes with
    chance `ACCEPTED`.
    """
    points = []
    for clients in (1, 4, 16, 64):
        random = np.random.default_rng(clients)
        clock, waiting = 0.0, [0.0] * clients  # when requests came
        left = []  # the tokens of each that runs, and how many are left
        firsts, ended, steps = [], 0, []  # of each step: its end, its time, requests that decode, their tokens
        while ended < 5 * clients + 12:
            new, waiting = waiting[: most - len(left)], waiting[most - len(left) :]
            width, running = len(left) * (gamma + 1) + len(new) * prompt, len(left) + len(new)
            texts = sum(prompt + tokens - rest for tokens, rest in left)
            step = max(10 + token * width, 0.05 * width) + per_request * running + 2.0 * (gamma > 0)
            step += attended * texts / 1e3
            clock += step
            commits = [1] * len(left)
            if gamma:
                passed = np.cumprod(random.random((len(left), gamma)) < ACCEPTED, axis=1)
                commits = (1 + passed.sum(axis=1)).tolist()
            steps.append((clock, step, len(left), sum(commits) + len(new)))
            firsts += [clock - came for came in new]
            left = [(tokens, rest - n) for (tokens, rest), n in zip(left, commits, strict=True) if rest > n]
            waiting += [clock] * (running - len(new) - len(left))
            ended += running - len(new) - len(left)
            left += [(tokens, tokens) for tokens in random.integers(OUTPUT // 2, 3 * OUTPUT // 2, len(new)).tolist()]
        ends, times, decoding, tokens = np.array(steps[len(steps) // 4 :]).T
        point = dict.fromkeys(COLUMNS, np.nan) | {"server": server, "model": "", "in_flight": clients}
        point |= {"throughput": tokens[1:].sum() / (ends[-1] - ends[0]) * 1e3}
        point |= {"step_ms": float(np.average(times, weights=decoding)), "ttft_ms": float(np.median(firsts))}
        point |= {"ttft_p99_ms": float(np.quantile(firsts, 0.99)), "requests": ended}
        point |= {"prompt_tokens": prompt, "output_tokens": OUTPUT}
        rounds = sum(decoding)
        points.append(point | ({"pooled": sum(tokens) / rounds, "drafts": rounds} if gamma else {"by_request": 1.0}))
    return pd.DataFrame(points)


@pytest.mark.parametrize(("per_request", "most"), [(0.0, 10**9), (0.015, 40)])
def test_the_forecast_meets_a_server_that_is_known(per_request, most):
    curve = PlainCurve(simulated("plain", per_request))
    measured = simulated("fast", per_request, most, GAMMA)
    made = forecast(curve, Speculating.of_point(measured.iloc[0].to_dict(), GAMMA, float(most)))
    assert curve.dearest == pytest.approx(0.05 + per_request / (1 + PROMPT / OUTPUT), rel=0.1)
    assert (made["throughput"] / measured["throughput"]).between(0.9, 1.1).all()
    assert (made["step_ms"] / measured["step_ms"]).between(0.9, 1.1).all()
    assert (made["gain_low"] <= made["gain"]).all() and (made["gain"] <= made["gain_high"]).all()
    if most == 40:  # 24 of 64 wait: Little's law
        assert made["ttft_ms"].iloc[-1] == pytest.approx(measured["ttft_ms"].iloc[-1], rel=0.2)


def test_steps_wider_than_any_plain_one_are_bounded_by_what_prompts_show():
    """A roofline: plain steps are bound by memory up to 64 in flight, drafts from 250 tokens on by computation."""
    curve, measured = PlainCurve(simulated("plain", 0.0, token=0.01)), simulated("fast", 0.0, 10**9, GAMMA, 0.01)
    made = forecast(curve, Speculating.of_point(measured.iloc[0].to_dict(), GAMMA))
    assert curve.cheapest is None and curve.wide == pytest.approx(0.05, rel=0.15)
    assert (made["throughput"] / measured["throughput"]).between(0.9, 1.1).all()


@pytest.mark.parametrize(("per_request", "attended"), [(0.1, 0.0), (0.0, 0.1), (0.0, 0.4)])
def test_prompts_that_nobody_measured_are_bounded_and_with_a_second_length_fitted(per_request, attended):
    """The time that a request adds to a step stays as it is with a longer text, or grows in proportion: the bounds of
    one length of prompts hold both, and two lengths meet each.
    """
    kind = {"per_request": per_request, "attended": attended}
    curve, other = (PlainCurve(simulated("plain", **kind, prompt=length)) for length in (PROMPT, 240))
    measured, loads = simulated("plain", **kind, prompt=600), curve.loads
    steps = measured["step_ms"].to_numpy()
    alone, fitted = (curve.with_prompts(600.0, others) for others in ((), (other,)))
    bounds = [alone.plain_ms(loads, Unknowns(0.0, *shares)) for shares in product((0, 1), (0, 1), (0,), (1,), (0, 1))]
    assert (np.min(bounds, axis=0) < 1.04 * steps).all() and (np.max(bounds, axis=0) > 0.98 * steps).all()
    step = fitted.plain_ms(loads, Unknowns())
    np.testing.assert_allclose(step, steps, rtol=0.05)
    np.testing.assert_allclose(fitted.plain_throughput(loads, Unknowns()), measured["throughput"], rtol=0.05)
    np.testing.assert_allclose(fitted.first_token_ms(loads, step), measured["ttft_ms"], rtol=0.35)
    if attended == 0.4:  # as dear as tokens: what of a step belongs to which is then as open as with one length
        return
    at = simulated("fast", **kind, gamma=GAMMA).iloc[0].to_dict()
    fast = simulated("fast", **kind, most=30, gamma=GAMMA, prompt=600)
    made = forecast(fitted, Speculating.of_point(at, GAMMA, 30))
    assert (made["throughput"] / fast["throughput"]).between(0.85, 1.1).all()
    assert (made["ttft_ms"] / fast["ttft_ms"]).between(0.9, 1.25).all()
    assert (made["gain_low"] <= made["gain"]).all() and (made["gain"] <= made["gain_high"]).all()


def test_memory_admits_fewer_of_longer_prompts_and_more_of_shorter_ones():
    """3,720 slots admit 20 requests of 186 slots: 5 of 726, and 25 of 146."""
    plain, limited = simulated("plain", 0.0), simulated("fast", 0.0, 20, GAMMA)
    tables, gauge = pd.concat([plain, limited]), Gauges(20.0, 44.0, 0.99, 3720.0)
    admitted = "3,720 slots over 726 that a request holds admit 5", "146 that a request holds admit 25"
    for gauges, facts, said in (
        ([], {"slots": {"": 3720.0}}, admitted),
        ([gauge], {}, ("with these prompts 726 each, so that 5 run", "with these prompts 146 each, so that 25 run")),
        ([], {"most_running": {"": 20.0}}, ("; 5 with these prompts, if memory", "; 20 with these prompts, if memory")),
    ):
        sections = explain(LoadTests(tables, tuple(gauges), ServerFacts({"": GAMMA}, **facts)), (600, 20))
        asked = [section for section in sections if "with prompts of" in section.title]
        assert [section.title for section in asked] == [f"fast: forecast with prompts of {n} tokens" for n in (600, 20)]
        for section, words in zip(asked, said, strict=True):
            text = " ".join(section.text)
            assert words in text and "plain decoding is taken to have memory for all" in text
            assert "a plain step with 64 running takes " in text and "error" not in section.tables[0][1].columns
    facts = ServerFacts({"": GAMMA}, slots={"": 3720.0, "plain": 7210.0})  # 10 of 600 + 120 + 1
    both = pd.concat([tables, simulated("plain", 0.0, prompt=240)])
    text = " ".join(explain(LoadTests(both, (), facts), (600,))[-1].text)
    assert "plain decoding runs 10 at most" in text and "fitted to plain runs with prompts of 240 tokens, too" in text


def test_memory_is_told_from_computation():
    plain, limited = simulated("plain", 0.0), simulated("fast", 0.0, 20, GAMMA)
    curve = PlainCurve(plain)
    at = Speculating.of_point(limited.iloc[0].to_dict(), GAMMA, 20)
    factors = gain_factors(limited, curve, at)
    product = factors[["tokens", "draft", "verify", "memory", "rest"]].prod(axis=1)
    measured = limited["throughput"].to_numpy() / plain["throughput"].to_numpy()
    np.testing.assert_allclose(product, measured, rtol=1e-12)
    np.testing.assert_allclose(factors["memory"].iloc[:3], 1)
    # Twenty run; were it all 64, a step would carry 44 more requests' tokens, so throughput would grow by less.
    wide, narrow = (12 + 0.05 * n * (GAMMA + 1 + 2.6 * PROMPT / OUTPUT) for n in (64, 20))
    assert factors["memory"].iloc[-1] == pytest.approx(20 / 64 * wide / narrow, rel=0.1)
    sections = explain(LoadTests(pd.concat([plain, limited]), (), ServerFacts({"": GAMMA}, slots={"": 20 * 186.0})))
    said = " ".join(text for section in sections for text in section.text)
    assert "44 of 64 wait to be admitted, 20 run" in said
    assert "What limits them: memory: 3,720 slots over 186 that a request holds admit 20" in said
    # Without drafts 20 run in plain steps, of 10 ms and 0.05 for each token, on a server that has no room for more.
    idle = 20 / 64 * np.divide(*(10 + 0.05 * n * (1 + PROMPT / OUTPUT) for n in (64, 20)))
    assert f"one times {idle:.2f} as its memory lets only 20 run, " in said


def test_a_schedule_is_by_running_requests_and_says_what_it_costs():
    """Tokens that cost so much that drafts lose from 16 in flight on; 40 run at most."""
    plain, limited = simulated("plain", 0.0, token=0.4), simulated("fast", 0.0, 40, GAMMA, 0.4)
    tests = LoadTests(pd.concat([plain, limited]), (), ServerFacts({"": GAMMA}, most_running={"": 40}))
    said = next(text for one in explain(tests) for text in one.text if text.startswith("For vLLM"))
    schedule, rest = said.split('"num_speculative_tokens_per_batch_size": ')[1].split("`", 1)
    ranges = json.loads(schedule)
    assert ranges[0][2] > 0 and ranges[-1][2] == 0 and 40 not in [line[0] for line in ranges]
    kept, drafting = (float(rest.split(words)[0].split()[-1]) for words in (" as its memory", " if drafts are made"))
    assert drafting < kept < 1 and "6.6% (2 requests) to 21.6% (189)" in rest


def test_two_numbers_of_acceptance_are_reconciled():
    point = dict.fromkeys(COLUMNS, np.nan) | {"server": "s", "model": "", "in_flight": 1, "throughput": 1}
    point |= {"pooled": 3.0, "by_request": 3.3, "accepted_share": 0.4}
    section = explain(LoadTests(pd.DataFrame([point]), (), ServerFacts()))[1]
    (said,) = section.text
    assert "3.00 and 3.30" in said and "3.00 pools all rounds" in said and "mean over requests, +10.0%" in said
    assert "40.0% is accepted over offered" in said and "at 5.0 offered per round" in said  # (3 - 1) / 0.4


def test_mixtures_are_refused():
    plain, fast = simulated("plain", 0.0), simulated("fast", 0.0, 10**9, GAMMA)
    for first, second, sentence in (
        (plain, plain.assign(server="other"), r"hold several plain servers \(plain, other\)"),
        (fast, fast.assign(prompt_tokens=240), "with prompts of 60 and 240 tokens"),
        (plain.assign(model="A"), plain.assign(model="B"), "mix servers of A and B"),
    ):
        with pytest.raises(UsageError, match=sentence):
            explain(LoadTests(pd.concat([first, second]), (), ServerFacts()))


def test_a_published_server_is_forecast_within_a_tenth(shared_data):
    """All 16 points of ../shared/data/serving_load, from the plain table, one point each, 74 admitted with DSpark."""
    folder = shared_data / "serving_load"
    if not folder.is_dir():
        pytest.skip(f"the published load tests are not here: {folder} does not exist")
    plain, *drafters = (
        read_loads(folder / f"{name}_HumanEval.csv").points.sort_values("in_flight")
        for name in ("baseline", "dspark", "mtp")
    )
    curve, within = PlainCurve(plain), 0
    known = ((7, 74.0, (64, 128)), (2, np.inf, (np.inf, np.inf)))
    for table, (gamma, most, off) in zip(drafters, known, strict=True):
        made = forecast(curve, Speculating.of_point(table.iloc[0].to_dict(), gamma, most))
        measured = table["throughput"].to_numpy()
        assert (np.abs(made["throughput"] / measured - 1) < 0.1).all()
        gain = measured / plain["throughput"].to_numpy()
        assert ((made["gain"] > 1) == (gain > 1)).all()
        within += int(((made["gain_low"] <= gain) & (gain <= made["gain_high"])).sum())
        assert off[0] <= off_load(made) <= off[1]
    assert within >= 15  # of 16, by intervals of 95%
