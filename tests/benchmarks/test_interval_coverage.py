"""Coverage of the intervals and size of the tests, by simulation; some minutes on one core.

A share p of n simulations has the standard error sqrt(p (1 - p) / n), given beside it; seeds are fixed.
"""

from math import sqrt

import numpy as np
import pandas as pd
import pytest
from fixtures import simulated_rounds as simulation
from oracles.rounds import replay_rounds

from specdec.analysis.acceptance import iid
from specdec.analysis.intervals import bootstrap
from specdec.analysis.rounds import prompt_sums

pytestmark = pytest.mark.benchmark
GAMMA, A, B = 5, 6, 2
LEVEL = 0.05
SIZES = {"prompts": 40, "rounds_per_prompt": 30}


def share(hits: int, runs: int) -> dict[str, float | int]:
    rate = float(hits / runs)
    spread = sqrt(rate * (1 - rate) / runs)
    return {"hits": int(hits), "simulations": runs, "share": round(rate, 4), "se": round(spread, 4)}


@pytest.fixture
def log_rejections(log_figure):
    """`log_rejections({"depth": 48}, "size of the test {} at 5%", **facts)`: so many of a thousand simulations."""

    def log(rejected, what, **facts):
        for name, hits in rejected.items():
            log_figure(what=what.format(name), **facts, seeds="0 to 999", rejected=share(hits, 1000))

    return log


def moments(highest: int) -> np.ndarray:
    """E[alpha^k] of Beta(A, B), k = 0 ... highest."""
    k = np.arange(highest)
    return np.concatenate([[1.0], np.cumprod((A + k) / (A + B + k))])


@pytest.mark.parametrize("prompts", [40, 100])
def test_coverage_with_prompts_that_differ(prompts, log_figure):
    """Tokens per round and alpha.mle, by prompt bootstrap and with rounds as the unit, 30 rounds per prompt."""
    runs, rounds = 2000, 30
    power = moments(GAMMA)
    truth = {"tokens_per_round": power.sum(), "alpha.mle": power[1:].sum() / power[:-1].sum()}
    covered = dict.fromkeys(truth, 0)
    naive = dict.fromkeys(truth, 0)
    for seed in range(runs):
        table = simulation.heterogeneous(prompts, rounds, GAMMA, seed, (A, B))
        intervals = bootstrap(
            prompt_sums(table),
            lambda s: {"tokens_per_round": s["tokens"] / s["rounds"], "alpha.mle": s["accepted"] / s["tested"]},
            replicates=2000,
            seed=seed,
        )
        tau, alpha = intervals["tokens_per_round"].estimate, intervals["alpha.mle"].estimate
        tested = (table["accepted"] + table["rejected"]).sum()
        errors = {
            "tokens_per_round": table["committed"].std() / sqrt(len(table)),
            "alpha.mle": sqrt(alpha * (1 - alpha) / tested),
        }
        for name, estimate in (("tokens_per_round", tau), ("alpha.mle", alpha)):
            covered[name] += intervals[name].low <= truth[name] <= intervals[name].high
            naive[name] += abs(estimate - truth[name]) <= 1.959964 * errors[name]
    for name in truth:
        log_figure(
            what=f"coverage of the 95% interval of {name}",
            **{"prompts": prompts, "rounds_per_prompt": rounds, "gamma": GAMMA, "alpha_per_prompt": f"Beta({A}, {B})"},
            **{"bootstrap_replicates": 2000, "seeds": f"0 to {runs - 1}"},
            prompt_bootstrap=share(covered[name], runs),
            rounds_as_the_unit=share(naive[name], runs),
        )
        assert 0.92 <= covered[name] / runs <= 0.97


def test_size_of_the_tests_of_one_gamma(log_rejections):
    """Under i.i.d. acceptance, alpha 0.7 at gamma 4, where each test should reject in 5% of the simulations."""
    names = ("depth", "trend", "mixing", "prompts", "prompts_beta", "previous_round")
    rejected = dict.fromkeys([*names, "memory"], 0)
    for seed in range(1000):
        table = simulation.iid(40, 30, 4, seed, 0.7)
        for name in names:
            rejected[name] += getattr(iid, name)(table).p_value < LEVEL
        rejected["memory"] += iid.memory(table, permutations=199, seed=seed).p_value <= LEVEL
    log_rejections(rejected, "size of the test {} at 5%", **SIZES, gamma=4, alpha=0.7)
    assert all(30 <= hits <= 70 for hits in rejected.values()), rejected


def test_memory_keeps_its_size_where_prompts_differ(log_rejections):
    """Differences between prompts are no memory; the depth test, which takes rounds as the unit, is deceived."""
    rejected = {"memory": 0, "depth": 0}
    for seed in range(1000):
        table = simulation.heterogeneous(40, 30, GAMMA, seed, (A, B))
        rejected["memory"] += iid.memory(table, permutations=199, seed=seed).p_value <= LEVEL
        rejected["depth"] += iid.depth(table).p_value < LEVEL
    what = "rejections of the test {} at 5% where only prompts differ"
    log_rejections(rejected, what, **SIZES, gamma=GAMMA, alpha_per_prompt=f"Beta({A}, {B})")
    assert 30 <= rejected["memory"] <= 70


def test_size_of_same_alpha(log_rejections):
    gammas, hits = (1, 2, 4, 8), 0
    for seed in range(1000):
        table = pd.concat([simulation.iid(40, 30, gamma, seed, 0.7) for gamma in gammas])
        hits += iid.same_alpha(simulation.sums_by_gamma(table), replicates=499, seed=seed)[0].p_value <= LEVEL
    log_rejections({"same_alpha": hits}, "size of the test {} at 5%", **SIZES, gammas=gammas, alpha=0.7)
    assert 30 <= hits <= 70


def test_size_of_implementation(log_rejections):
    """A position-wise drafter that does what its replay says: texts of 60 tokens, m_t from Beta(2, 1), gamma 4."""
    prompts, tokens, gamma, sets = 40, 60, 4, 20
    generator = np.random.default_rng(0)
    texts = generator.beta(2, 1, size=(sets, prompts, tokens))
    names = [f"p{number:05d}" for number in range(prompts)]
    replays = [
        pd.DataFrame({"prompt": names, "tokens": tokens, "rounds": [replay_rounds(m, gamma) for m in each]})
        for each in texts
    ]
    hits = 0
    for seed in range(1000):
        table = simulation.along_texts(texts[seed % sets], gamma, seed)
        hits += iid.implementation(table, replays[seed % sets], replicates=499, seed=seed)[0].p_value <= LEVEL
    facts = {"prompts": prompts, "tokens_per_prompt": tokens, "gamma": gamma, "m": "Beta(2, 1) per position"}
    log_rejections({"implementation": hits}, "size of the test {} at 5%", **facts)
    assert 30 <= hits <= 70
