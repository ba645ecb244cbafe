"""Metrics of a run beside those of its rounds, from counts and times that are known."""

from types import SimpleNamespace

import pandas as pd
import pytest

from specdec.analysis.account.run_account import SharedWork
from specdec.analysis.arms import Arms
from specdec.analysis.findings.run_metrics import limit_metrics, null_metrics, operation_metrics
from specdec.analysis.findings.run_notes import control_notes
from specdec.analysis.findings.summary import summarise

OURS = {"draft_s": 0.003, "verify_s": 0.0225, "accept_s": 0.0014, "commit_s": 0.0005, "round_s": 0.0274}
PLAIN = {"draft_s": 0.0, "verify_s": 0.02, "accept_s": 0.0, "commit_s": 0.001, "round_s": 0.021}


@pytest.fixture
def run(make_rounds, make_generations):
    """Drafts of 4, 4, 2 and 0 tokens, of which 2, 4, 0 and 0 count, and the baseline of the same 10 tokens."""
    ours = make_rounds({"p": [2, 4, 0, 0]}, 4, offered={"p": [4, 4, 2, 0]}, durations=OURS)
    plain = make_rounds({"p": [0] * 10}, 0, method="baseline", durations=PLAIN)
    rounds = pd.concat([ours, plain], ignore_index=True)
    return summarise(SharedWork.of(Arms.of(rounds), 4), make_generations(rounds), 10, 9), rounds


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
    metrics = limit_metrics(summary)
    omega = sum((6 / 8) ** k for k in range(5))
    assert metrics["speedup.limit"] == pytest.approx(omega * 20 / (3 + 22.5))
    assert metrics["speedup.limit.realised"] == pytest.approx(10 / 4 * 20 / (3 + 22.5))
    assert metrics["cost/overhead_share"] == pytest.approx(1.9 / 27.4)


def plainly(seconds: list[float], make_rounds) -> Arms:
    """Ten prompts of 8 tokens, by the baseline in 8 seconds each, and by the control in `seconds`."""
    prompts = {f"p{number}": [0] * 8 for number in range(len(seconds))}
    baseline = make_rounds(prompts, 0, method="baseline", durations={**PLAIN, "round_s": 1.0})
    control = make_rounds(prompts, 0, method="null", durations={**PLAIN, "round_s": 1.0})
    control["round_s"] *= control["prompt"].map({f"p{number}": each / 8 for number, each in enumerate(seconds)})
    ours = make_rounds({name: [2, 4, 0, 0] for name in prompts}, 4, durations=OURS)
    return Arms.of(pd.concat([ours, baseline, control], ignore_index=True))


def test_a_control_has_the_baselines_time_over_its_own(make_rounds):
    """Its floor is where the farther end of the interval lies."""
    found = null_metrics(plainly([8.0, 7.9, 8.2, 8.1, 7.6, 8.3], make_rounds), 2000, 0)
    assert found["null/speedup"] == pytest.approx(48 / 48.1)
    assert found["null/speedup.ci_low"] < 1 < found["null/speedup.ci_high"]
    ends = found["null/speedup.ci_high"] - 1, 1 / found["null/speedup.ci_low"] - 1
    assert found["null/floor"] == pytest.approx(max(ends)) and 0.01 < found["null/floor"] < 0.06
    assert "null/floor" not in null_metrics(plainly([8.0, 7.9, 8.2, 8.1], make_rounds), 200, 0)  # too few prompts


def test_a_control_is_no_arm_of_the_drafter(make_rounds):
    arms = plainly([8.0] * 5, make_rounds)
    assert list(arms.by_gamma()) == [4] and list(arms.of_one_drafter(4)) == [4]
    assert null_metrics(arms.of_methods(["baseline", "ngram"]), 100, 0) == {}


def test_the_note_says_the_noise_and_when_the_control_fails(make_rounds):
    fine = control_notes(
        {"null/speedup": 1.01, "null/speedup.ci_low": 0.98, "null/speedup.ci_high": 1.03, "null/floor": 0.03}
    )
    assert fine == [
        "Null control: plain decoding, measured a second time, has a speedup of 1.010 (0.980 to 1.030) over itself; "
        "what differs from 1 by less than 3.0% is noise."
    ]
    apart = {"null/speedup": 1.06, "null/speedup.ci_low": 1.02, "null/speedup.ci_high": 1.1, "null/floor": 0.1}
    assert "leaves out 1" in control_notes(apart)[0]
    assert "too few prompts" in control_notes({"null/speedup": 1.06})[0]
