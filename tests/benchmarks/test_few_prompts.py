"""Intervals of few prompts: their coverage by simulation, and the null control of real runs; two minutes on a core.

Seeds are fixed; a share p of n simulations has the standard error sqrt(p (1 - p) / n).
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from fixtures.small_parts import composed

from specdec.analysis.arms import Arms
from specdec.analysis.findings.run_metrics import null_metrics
from specdec.analysis.intervals import FEWEST, bootstrap, percentile_bounds, resampled_sums
from specdec.clock import clock_for
from specdec.folder.results import ResultsFolder
from specdec.plan.plan import plan
from specdec.session.parts import open_parts, prepare
from specdec.session.session import Session

pytestmark = pytest.mark.benchmark
RUNS, REPLICATES = 2000, 1000


def null(prompts: int, generator: np.random.Generator) -> pd.DataFrame:
    """Sums of one method measured twice: the times of a prompt differ by noise with heavy tails, 2% of the time."""
    tokens = generator.integers(40, 129, prompts).astype(float)
    seconds = [tokens * np.exp(0.02 * generator.standard_t(4, prompts)) for _ in range(2)]
    return pd.DataFrame({"baseline": seconds[0], "own": seconds[1]})


def speculative(prompts: int, generator: np.random.Generator) -> pd.DataFrame:
    """Sums of a drafter that takes 0.4 + Gamma(4, 0.1) of the baseline's time, drawn for each prompt, with 3% noise."""
    tokens = generator.integers(40, 129, prompts).astype(float)
    rounds = tokens * (0.4 + generator.gamma(4, 0.1, prompts))
    seconds = [each * np.exp(0.03 * generator.standard_t(4, prompts)) for each in (tokens, rounds)]
    return pd.DataFrame({"baseline": seconds[0], "own": seconds[1]})


def speedup(sums) -> dict[str, np.ndarray]:
    return {"speedup": sums["baseline"] / sums["own"]}


@pytest.mark.parametrize("prompts", [3, 5, 10, 20])
@pytest.mark.parametrize("kind", [null, speculative])
def test_coverage(kind, prompts, log_figure):
    """The speedup's 95% interval, beside the plain percentiles of the same replicates.

    At the fewest prompts that give a verdict at least 93 of the first hundred null controls contain 1. At a coverage of
    95% a hundred others would fall short of that once in eight times: the share of all simulations is the evidence.
    """
    whole = kind(2_000_000, np.random.default_rng(99)).sum()
    truth = 1.0 if kind is null else float(whole["baseline"] / whole["own"])
    held, plain = np.zeros(RUNS, dtype=bool), np.zeros(RUNS, dtype=bool)
    for run in range(RUNS):
        table = kind(prompts, np.random.default_rng([run, prompts]))
        held[run] = bool(bootstrap(table, speedup, REPLICATES, run)["speedup"].contains(truth))
        drawn = resampled_sums(table.to_numpy(), REPLICATES, run)
        low, high = percentile_bounds(drawn[:, 0] / drawn[:, 1], 0.95)
        plain[run] = low <= truth <= high
    log_figure(
        what=f"coverage of the 95% interval of the speedup, {kind.__name__}",
        **{"prompts": prompts, "simulations": RUNS, "interval": float(held.mean()), "percentiles": float(plain.mean())},
        of_the_first_100=int(held[:100].sum()),
    )
    assert 0.92 <= held.mean() <= 0.97
    assert kind is speculative or prompts != FEWEST or held[:100].sum() >= 93


def test_the_null_control_of_real_runs(tmp_path, log_figure):
    """Twenty short runs of the pocket target on five prompts each: the control's interval contains 1 in 19."""
    overrides = ["+drafter=ngram", "measurement.null=true", "measurement.gammas=[]", "measurement.max_new_tokens=24"]
    overrides += ["target.compile=false", f"prompts.limit={FEWEST}", "structure.gamma=2"]
    config = composed(*overrides)
    parts = open_parts(plan(config))
    prepare(parts)
    found = []
    for run in range(20):
        seeded = replace(parts, plan=replace(parts.plan, seed=run))
        results = ResultsFolder(tmp_path / str(run))
        session = Session(seeded, "cell", results, clock_for(parts.target.device))
        session.warm_up(parts.longest_prompt, 8)
        for prompt in parts.prompts.prompts:
            session.run_prompt(prompt, 0)
        results.compact()
        arms = Arms.of(pd.read_parquet(tmp_path / str(run) / "rounds.parquet"))
        found.append(null_metrics(arms, 10_000, run))
    held = [each["null/speedup.ci_low"] <= 1 <= each["null/speedup.ci_high"] for each in found]
    log_figure(
        what="null control of real runs",
        **{"prompts": FEWEST, "runs": len(found), "contain_1": sum(held)},
        speedups=[round(each["null/speedup"], 4) for each in found],
        floors=[round(each["null/floor"], 4) for each in found],
    )
    assert sum(held) >= 19
