"""Metrics of a run beside those of its rounds, from counts and times that are known."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from fixtures.rounds_tables import build_generations

from specdec.analysis.account.run_account import SharedWork
from specdec.analysis.arms import Arms
from specdec.analysis.findings.run_metrics import (
    OUTPUTS,
    SAMPLED,
    limit_metrics,
    null_metrics,
    operation_metrics,
    quality_metrics,
    sampled_metrics,
)
from specdec.analysis.findings.summary import summarise

OURS = {"draft_s": 0.003, "verify_s": 0.0225, "accept_s": 0.0014, "commit_s": 0.0005, "round_s": 0.0274}
PLAIN = {"draft_s": 0.0, "verify_s": 0.02, "accept_s": 0.0, "commit_s": 0.001, "round_s": 0.021}


def test_operations_count_every_token_of_a_call(make_rounds):
    """Each call evaluates its root and its draft: 5 + 5 + 3 + 1 tokens for 10; the drafter 10 at a twentieth each."""
    ours = make_rounds({"p": [2, 4, 0, 0]}, 4, offered={"p": [4, 4, 2, 0]}, durations=OURS)
    rounds = pd.concat([ours, make_rounds({"p": [0] * 10}, 0, "baseline", durations=PLAIN)], ignore_index=True)
    summary = summarise(SharedWork.of(Arms.of(rounds), 4), build_generations(rounds), 10, 9)
    metrics = operation_metrics(summary, SimpleNamespace(target_flops=100.0, drafter_flops=5.0))
    assert metrics["cost/c_ops"] == 0.05
    assert metrics["operations/measured"] == pytest.approx((14 + 0.05 * 10) / 10)
    alpha = 6 / 8  # six accepted, two rejected
    omega = sum(alpha**k for k in range(5))
    assert metrics["operations/capped_geometric"] == pytest.approx((4 * 0.05 + 4 + 1) / omega)
    assert operation_metrics(summary, SimpleNamespace(target_flops=0.0, drafter_flops=0.0)) == {}
    metrics = limit_metrics(summary)
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
    found = null_metrics(plainly([8.0, 7.9, 8.2, 8.1, 7.6, 8.3], make_rounds), 2000)
    assert found["null/speedup"] == pytest.approx(48 / 48.1)
    assert found["null/speedup.ci_low"] < 1 < found["null/speedup.ci_high"]
    ends = found["null/speedup.ci_high"] - 1, 1 / found["null/speedup.ci_low"] - 1
    assert found["null/floor"] == pytest.approx(max(ends)) and 0.01 < found["null/floor"] < 0.06
    arms = plainly([8.0, 7.9, 8.2, 8.1], make_rounds)
    assert "null/floor" not in null_metrics(arms, 200)  # too few prompts
    assert list(arms.by_gamma()) == [4] == list(SharedWork.of(arms, 4).arms)  # a control is no arm of the drafter
    assert null_metrics(arms.of_methods(["baseline", "ngram"]), 100) == {}


def tables(prompts=6, known=True, correct=None, likelihood=-3.0):
    """Two rounds of a drafter at gamma 2 and three of the baseline for every prompt."""
    rounds, outputs = [], []
    for number in range(prompts):
        key = {"cell": "c", "repeat": 0, "prompt": f"p{number}", "category": ""}
        for method, gamma, committed in (("typical", 2, (3, 1)), ("baseline", 0, (1, 1, 1))):
            for index, count in enumerate(committed):
                offered = 2 if gamma else 0
                rounds.append(
                    key
                    | {"method": method, "gamma": gamma, "round": index, "committed": count, "offered": offered}
                    | {"departure": [0.1 * number] * count if known or not gamma else []}
                    | {"otherwise": 0.5 * index if gamma and known else np.nan}
                )
            tokens = sum(committed)
            value = likelihood * tokens * (1 if gamma else 0.5) + number
            right = None if correct is None else correct[method][number]
            outputs.append(
                key | {"method": method, "gamma": gamma, "tokens": tokens, "log_likelihood": value, "correct": right}
            )
    return pd.DataFrame(rounds), pd.DataFrame(outputs, columns=list(OUTPUTS))


def metrics(*args, **kwargs):
    return quality_metrics(*tables(*args, **kwargs), gamma=2, replicates=400)


def test_every_figure_is_a_ratio_of_sums():
    found = metrics()
    extra = sum(range(6))
    assert found["quality/log_likelihood"] == pytest.approx((-3.0 * 24 + extra) / 24)
    assert found["quality/baseline_log_likelihood"] == pytest.approx((-1.5 * 18 + extra) / 18)
    assert found["quality/log_likelihood.over_baseline"] == pytest.approx(
        found["quality/log_likelihood"] - found["quality/baseline_log_likelihood"]
    )
    assert found["quality/tv"] == pytest.approx(0.1 * 2.5) == found["quality/baseline_tv"]
    assert found["quality/decided_otherwise"] == pytest.approx(0.25)
    for name in ("log_likelihood", "baseline_log_likelihood", "tv"):
        low, high = found[f"quality/{name}.ci_low"], found[f"quality/{name}.ci_high"]
        assert low < found[f"quality/{name}"] < high
    # All prompts decide otherwise equally often.
    ends = [found[f"quality/decided_otherwise.ci_{end}"] for end in ("low", "high")]
    assert ends == pytest.approx([0.25, 0.25])
    assert not [name for name in found if "gsm8k" in name]
    correct = {"typical": [True, False, False, None, True, False], "baseline": [True, True, True, None, True, False]}
    found = metrics(correct=correct)
    assert found["quality/gsm8k_exact_match"] == pytest.approx(2 / 5)
    assert found["quality/baseline_gsm8k_exact_match"] == pytest.approx(4 / 5)


def test_what_is_not_known_of_every_round_is_absent():
    found = metrics(known=False)
    assert "quality/tv" not in found and "quality/decided_otherwise" not in found
    assert found["quality/baseline_tv"] == pytest.approx(0.25) and "quality/log_likelihood" in found
    rounds, outputs = tables()
    outputs.loc[0, "log_likelihood"] = -np.inf  # a text without a chance has no mean
    found = quality_metrics(rounds, outputs, 2, 100)
    assert not [name for name in found if "likelihood" in name] and "quality/tv" in found
    rounds.at[0, "departure"] = [0.2]  # of three committed tokens
    assert "quality/tv" not in quality_metrics(rounds, outputs, 2, 100)


def test_only_work_that_all_methods_did_counts():
    rounds, outputs = tables()
    rounds = rounds.query("prompt != 'p5' or method != 'typical'")
    found = quality_metrics(rounds, outputs.query("prompt != 'p5' or gamma != 2"), 2, 9)
    assert found["quality/tv"] == pytest.approx(0.1 * 2.0) == found["quality/baseline_tv"]
    with pytest.raises(ValueError, match="no prompt in common"):
        quality_metrics(rounds.query("(prompt == 'p0') == (method == 'typical')"), outputs, 2, 9)


def texts() -> pd.DataFrame:
    """Six prompts: of half of them the drafter gains a factor of 2 on a token, of the others one of 1.5; its texts have
    other lengths.
    """
    lines = [
        (0.5, "baseline", 0, 0, "a", "x", 10, 10, 0, 0, 1.0, 10.0, False),
        (0.5, "ours", 4, 0, "a", "x", 20, 5, 16, 3, 2.0, 10.0, True),
        (0.5, "baseline", 0, 0, "b", "x", 30, 30, 0, 0, 1.0, 30.0, False),
        (0.5, "ours", 4, 0, "b", "x", 30, 15, 15, 13, 1.0, 20.0, False),
    ]
    table = pd.DataFrame(lines, columns=list(SAMPLED))
    return pd.concat([table.assign(prompt=table["prompt"] + str(copy)) for copy in range(3)], ignore_index=True)


def test_times_of_a_token_are_compared_not_times_of_a_text():
    found = sampled_metrics(texts(), 2000)
    assert (found["sampled/temperature"], found["sampled/prompts"], found["sampled/repetition.share"]) == (0.5, 6, 0.5)
    assert found["sampled/speedup"] == pytest.approx((40 / 40) / (30 / 50))
    assert found["sampled/speedup.end_to_end"] == pytest.approx((42 / 40) / (33 / 50))
    assert found["sampled/tokens_per_round"] == pytest.approx(50 / 20)
    assert found["sampled/alpha.mle"] == pytest.approx(31 / 47)
    assert found["sampled/speedup.ci_low"] < 1.5 and found["sampled/speedup.ci_high"] > 1.9
    on_a_busy_machine = sampled_metrics(texts(), 2000, timed=False)
    bounds = {f"sampled/{name}.ci_{end}" for name in ("speedup", "speedup.end_to_end") for end in ("low", "high")}
    assert on_a_busy_machine == {name: value for name, value in found.items() if name not in bounds}
    found = sampled_metrics(texts().iloc[:3], 100)
    assert found["sampled/speedup"] == pytest.approx(2) and "sampled/speedup.ci_low" not in found
    assert sampled_metrics(pd.DataFrame(), 100) == {}
