"""Metrics of a run beside those of its rounds, from counts and times that are known."""

from types import SimpleNamespace

import pandas as pd
import pytest

from specdec.analysis.arms import Arms
from specdec.analysis.runs.run_metrics import limit_metrics, operation_metrics
from specdec.analysis.runs.summary import RunTables, summarise

OURS = {"draft_s": 0.003, "verify_s": 0.0225, "accept_s": 0.0014, "commit_s": 0.0005, "round_s": 0.0274}
PLAIN = {"draft_s": 0.0, "verify_s": 0.02, "accept_s": 0.0, "commit_s": 0.001, "round_s": 0.021}


@pytest.fixture
def run(make_rounds, make_generations):
    """Drafts of 4, 4, 2 and 0 tokens, of which 2, 4, 0 and 0 count, and the baseline of the same 10 tokens."""
    ours = make_rounds({"p": [2, 4, 0, 0]}, 4, offered={"p": [4, 4, 2, 0]}, durations=OURS)
    plain = make_rounds({"p": [0] * 10}, 0, method="baseline", durations=PLAIN)
    rounds = pd.concat([ours, plain], ignore_index=True)
    return summarise(RunTables(Arms.of(rounds), make_generations(rounds)), 4, replicates=10, permutations=9), rounds


def test_operations_count_every_token_of_a_call(run):
    """Each call evaluates its root and its draft: 5 + 5 + 3 + 1 tokens for 10; the drafter 10 at a twentieth each."""
    summary, rounds = run
    metrics = operation_metrics(summary, SimpleNamespace(target_flops=100.0, drafter_flops=5.0))
    assert metrics["cost/c_ops"] == 0.05
    assert metrics["operations/measured"] == pytest.approx((14 + 0.05 * 10) / 10)
    alpha = 6 / 8  # six accepted, two rejected
    omega = (1 - alpha**5) / (1 - alpha)
    assert metrics["operations/capped_geometric"] == pytest.approx((4 * 0.05 + 4 + 1) / omega)
    assert operation_metrics(summary, SimpleNamespace(target_flops=0.0, drafter_flops=0.0)) == {}


def test_the_limit_has_drafts_and_verification_and_no_overhead(run):
    metrics = limit_metrics(run[0])
    omega = sum((6 / 8) ** k for k in range(5))
    assert metrics["speedup.limit"] == pytest.approx(omega * 20 / (3 + 22.5))
    assert metrics["speedup.limit.realised"] == pytest.approx(10 / 4 * 20 / (3 + 22.5))
    assert metrics["cost/overhead_share"] == pytest.approx(1.9 / 27.4)
