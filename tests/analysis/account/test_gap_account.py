"""The gap account: check values of theory.md 8.1, the product for arbitrary data, what each factor reacts to."""

from math import log, prod

import numpy as np
import pandas as pd
import pytest
from oracles.rounds import replay_rounds

from specdec.analysis.account.gap_account import FACTORS, Account, account_table, gap_account
from specdec.analysis.rounds import prompt_sums


def account_of(
    alpha, gamma, rounds, baseline, t1_s, replay=None, alpha_sums=None, replicates=10_000, experts=None
) -> Account:
    table = account_table(rounds, prompt_sums(baseline), gamma, replay, alpha_sums, experts)
    return gap_account(table, gamma, t1_s, alpha, replicates)


def baseline_of(make_rounds, tokens: int, seconds: float, prompts: tuple[str, ...] = ("p",)):
    times = {"draft_s": 0.0, "verify_s": seconds, "accept_s": 0.0, "commit_s": 0.0, "round_s": seconds}
    return make_rounds({name: [0] * tokens for name in prompts}, 0, method="baseline", durations=times)


def random_run(make_rounds, generator: np.random.Generator, prompts: int = 6, gamma: int = 4):
    """Rounds of any shape: uneven offers, cuts, random times; a baseline; a replay."""
    parts, baselines, replays = [], [], []
    for i in range(prompts):
        name, length = f"p{i}", int(generator.integers(3, 12))
        offered = generator.integers(0, gamma + 1, size=length)
        accepted = generator.binomial(offered, 0.7)
        part = make_rounds({name: accepted.tolist()}, gamma, offered={name: offered.tolist()})
        for column in ("draft_s", "verify_s", "accept_s", "commit_s"):
            part[column] = generator.gamma(2, 0.01, size=length)
        part["round_s"] = part[["draft_s", "verify_s", "accept_s", "commit_s"]].sum(axis=1) * 1.1
        parts.append(part)
        tokens = int(part["committed"].sum())
        baselines.append(baseline_of(make_rounds, tokens, generator.uniform(0.01, 0.03), (name,)))
        m = generator.random(tokens)
        replays.append({"prompt": name, "tokens": tokens, "rounds": replay_rounds(m, gamma)})
    return pd.concat(parts, ignore_index=True), pd.concat(baselines, ignore_index=True), pd.DataFrame(replays)


@pytest.mark.parametrize(
    ("with_replay", "restored", "mixture"),
    [(False, False, False), (True, False, False), (True, True, False), (True, True, True)],
)
def test_the_product_is_the_measured_speedup_for_any_data(make_rounds, with_replay, restored, mixture):
    generator = np.random.default_rng(with_replay + restored + mixture)
    rounds, baseline, replay = random_run(make_rounds, generator)
    if restored:
        rounds["restore_s"] = generator.uniform(0, 1, len(rounds)) * rounds["commit_s"]
    alpha, t1 = generator.uniform(0.2, 1), generator.uniform(0.005, 0.05)
    experts = None
    if mixture:
        calls = rounds.groupby("prompt").size()
        reads = calls * generator.uniform(1, 3, len(calls))
        experts = pd.DataFrame({"prompt": calls.index, "calls": calls.to_numpy(), "reads": reads.to_numpy()})
    replay = replay if with_replay else None
    account = account_of(alpha, 4, rounds, baseline, t1, replay, replicates=50, experts=experts)
    measured = (baseline["round_s"].sum() / baseline["committed"].sum()) / (
        rounds["round_s"].sum() / rounds["committed"].sum()
    )
    assert account.speedup == pytest.approx(measured, abs=1e-12)
    assert abs(account.product - measured) < 1e-9
    assert sum(log(factor) for factor in account.factors.values()) == pytest.approx(log(measured), abs=1e-9)
    absent = {"drift": not with_replay, "restore": not restored, "experts": not mixture}
    assert list(account.factors) == [name for name in FACTORS if not absent.get(name)]
    if experts is not None:
        g, x = account.time["g"], experts["reads"].sum() / experts["calls"].sum()
        assert account.factors["experts"] == pytest.approx((1 + g) / (x + g))
        assert account.named("verify").symbol == "(x + g) / (v + g)" != FACTORS["verify"].symbol
    if restored:
        other = rounds["draft_s"].sum() + rounds["verify_s"].sum()
        assert account.factors["restore"] == pytest.approx(other / (other + rounds["restore_s"].sum()))
    assert sum(account.time.values()) == pytest.approx(rounds["round_s"].mean() / t1)


def test_dependence_is_up_to_the_replay_and_drift_beyond_it(make_rounds):
    """33 tokens in 10 rounds where a replay expects 12, under theory's Omega(.8, 5) = 3.68928."""
    accepted = [2, 3, 2, 3, 2, 2, 2, 3, 2, 2]
    rounds = make_rounds({"p": accepted}, 5).assign(tokens_left=1_000)  # the end of the text cuts nothing
    replay = pd.DataFrame({"prompt": ["p"], "tokens": [33], "rounds": [12.0]})
    account = account_of(0.8, 5, rounds, baseline_of(make_rounds, 33, 0.02), 0.02, replay, replicates=10)
    assert account.factors["dependence"] == pytest.approx(33 / 12 / 3.68928)
    assert account.factors["drift"] == pytest.approx(12 / 10)


def test_offered_factor_counts_short_offers_silence_and_the_end_of_the_text(make_rounds):
    """Rounds that offered 4, 2 and 0, and one that offered 4 with 2 tokens left: one can be a draft."""
    rounds = make_rounds({"p": [4, 2, 0, 1]}, 4, offered={"p": [4, 2, 0, 4]})
    rounds["tokens_left"] = [11, 6, 3, 2]
    account = account_of(0.5, 4, rounds, baseline_of(make_rounds, 11, 0.02), 0.02)
    omega_bar = np.mean([1.9375, 1.75, 1.0, 1.5])  # Omega(.5, 4), (.5, 2), (.5, 0), (.5, 1)
    assert account.value("omega_bar") == pytest.approx(omega_bar)
    assert account.factors["offered"] == pytest.approx(omega_bar / 1.9375)


def test_intervals_come_from_the_same_replicates(make_rounds):
    rounds, baseline, replay = random_run(make_rounds, np.random.default_rng(8), prompts=12)
    sums = rounds.groupby("prompt").agg(numerator=("accepted", "sum"), rejected=("rejected", "sum"))
    sums["denominator"] = sums["numerator"] + sums.pop("rejected")
    alpha = sums["numerator"].sum() / sums["denominator"].sum()
    free = account_of(alpha, 4, rounds, baseline, 0.02, replay, sums.reset_index(), replicates=500)
    fixed = account_of(alpha, 4, rounds, baseline, 0.02, replay, replicates=500)
    assert free.factors == pytest.approx(fixed.factors)
    for name in (*free.factors, "speedup", "g", "v", "o"):
        interval = free.intervals[name]
        assert interval.low <= interval.estimate <= interval.high and interval.prompts == 12
    omega = fixed.intervals["omega"]
    assert [omega.low, omega.high] == pytest.approx([fixed.factors["omega"]] * 2, rel=1e-12)
    assert free.intervals["omega"].low < free.intervals["omega"].high
    assert free.intervals["speedup"] == fixed.intervals["speedup"]
    widths = prod(free.intervals[name].high / free.intervals[name].low for name in free.factors)
    assert free.intervals["speedup"].high / free.intervals["speedup"].low < widths  # not intervals multiplied


def test_replicates_of_prompts_without_a_position_have_no_theory(make_rounds):
    """One prompt of five gave a proposal: a third of the replicates has no alpha, so theory has no interval."""
    silent = dict.fromkeys("qrst", [0, 0])
    rounds = make_rounds({"p": [2, 3], **silent}, 4, offered={"p": [4, 4], **silent})
    sums = pd.DataFrame({"prompt": ["p"], "numerator": [5.0], "denominator": [7.0]})
    account = account_of(5 / 7, 4, rounds, baseline_of(make_rounds, 9, 0.02, tuple("pqrst")), 0.02, None, sums, 200)
    assert account.product == pytest.approx(account.speedup, abs=1e-12)
    assert np.isnan([account.intervals["omega"].low, account.intervals["dependence"].low]).all()
    assert account.intervals["speedup"].low < account.intervals["speedup"].high


def test_bad_input_is_refused(make_rounds):
    rounds, baseline, replay = random_run(make_rounds, np.random.default_rng(10))
    for gamma, t1, known, says in (
        (4, 0.0, None, "positive times"),
        (2, 0.02, None, "more than gamma 2"),
        (4, 0.02, replay[replay["prompt"] != "p0"], "replay figures lack 1 prompts, the first is 'p0'"),
    ):
        with pytest.raises(ValueError, match=says):
            account_of(0.5, gamma, rounds, baseline, t1, known)
