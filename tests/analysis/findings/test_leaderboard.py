"""Ranks, intervals and tables of several arms on the same prompts, computed another way."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from specdec.analysis.findings import leaderboard as board
from specdec.analysis.intervals import bootstrap, per_round
from specdec.analysis.read.runs import Run
from specdec.errors import UsageError

PLAIN = {"draft_s": 0.0, "verify_s": 0.02, "accept_s": 0.0, "commit_s": 0.0, "round_s": 0.025}
DRAFTED = {"draft_s": 0.004, "verify_s": 0.024, "accept_s": 0.0, "commit_s": 0.0, "round_s": 0.03}


@pytest.fixture
def rounds(make_rounds: Callable[..., pd.DataFrame]) -> pd.DataFrame:
    """Five prompts at gammas 1 and 2, and their baseline."""
    two = {"a": [2, 2, 1], "b": [0, 0, 1], "c": [2, 0], "d": [1, 1, 1, 0], "e": [2, 1, 2]}
    one = {name: [min(count, 1) for count in counts] for name, counts in two.items()}
    plain = {name: [0] * 8 for name in two}
    parts = [make_rounds(outputs, gamma, durations=DRAFTED) for outputs, gamma in ((two, 2), (one, 1))]
    table = pd.concat([*parts, make_rounds(plain, 0, method="baseline", durations=PLAIN)], ignore_index=True)
    return table.assign(category=np.where(table["prompt"] < "c", "code", "text"))


@pytest.fixture
def arms(rounds: pd.DataFrame, stored_run: Callable[..., Run]) -> list[board.RunArm]:
    return list(board.open_arms(stored_run(rounds)).values())


def test_values_and_intervals_are_ratios_of_sums_with_a_prompt_bootstrap(arms):
    scores = board.score([arm.sums for arm in arms], ["one", "two"], list("abcde"), replicates=300, depths=[1, 2])
    for index, arm in enumerate(arms):
        expected = bootstrap(
            arm.sums,
            lambda s: {
                "speedup": s["baseline_round_s"] / s["baseline_tokens"] * s["tokens"] / s["round_s"],
                "tokens_per_round": s["tokens"] / s["rounds"],
            },
            replicates=300,
            ranges={"tokens_per_round": per_round(arm.gamma)},
        )
        for quantity, interval in expected.items():
            ours = scores.interval(quantity, index)
            bounds = (interval.estimate, interval.low, interval.high)
            assert (ours.estimate, ours.low, ours.high) == pytest.approx(bounds)
    assert [scores.values[name][1] for name in "gvo"] == pytest.approx([0.2, 1.2, 0.1])
    # An arm against itself differs by exactly nothing; resampled apart it would not.
    scores = board.score([arms[1].sums] * 2, ["x", "y"], list("abcde"), replicates=200)
    assert np.ptp(scores.scores["speedup"][1:, 0]) > 0
    ratio, difference = scores.ratio("speedup", 0, 1), scores.difference("speedup", 0, 1)
    assert (ratio.low, ratio.high, difference.low, difference.high) == (1, 1, 0, 0)
    assert not scores.apart("speedup", 0, 1)
    assert scores.rank_shares("speedup").tolist() == [[0.5, 0.5], [0.5, 0.5]]


def test_rank_shares_count_the_replicates():
    drawn = np.array([[3.0, 2.0, 1.0], [2.0, 3.0, 1.0], [2.0, 2.0, 1.0], [3.0, 2.0, 2.0]])
    scores = board.ScoredArms(("a", "b", "c"), (4, 4, 4), 5, {"x": np.vstack([[3.0, 2.0, 1.0], drawn])})
    expected = [
        [(1 + 0 + 0.5 + 1) / 4, (0 + 1 + 0.5) / 4, 0],
        [1.5 / 4, (1 + 0.5 + 0.5) / 4, 0.5 / 4],
        [0, 1 / 8, 7 / 8],
    ]
    np.testing.assert_allclose(scores.rank_shares("x"), expected)
    table = board.rank_table(scores, "x")
    assert table["best"].tolist() == ["62%", "38%", "0%"]
    assert list(table.columns) == ["run", "best", "rank 2", "rank 3"]


def test_the_table_has_categories_beside_overall_and_cost(arms):
    table = board.leaderboard(arms, ["one", "two"], list("abcde"), replicates=200)
    assert list(table.columns) == [
        *("rank", "run", "gamma", "code (2)", "text (3)", "overall", "tokens per round", "g", "v", "o")
    ]
    assert table["run"].tolist() == ["two", "one"] and table["gamma"].tolist() == ["2", "1"]
    code = arms[1].sums.loc[["a", "b"]].sum()
    speedup = 0.025 * code["tokens"] / code["round_s"]
    assert table["code (2)"][0] == f"{speedup:.2f} (–)" and table["overall"][0].count(" to ") == 1
    assert board.categories(arms, ["a", "c"]) == {}  # one prompt in each
    assert list(board.leaderboard(arms, ["one", "two"], ["a", "b"], 50).columns)[3] == "overall"


def test_few_prompts_have_values_without_intervals(arms):
    scores = board.score([arm.sums for arm in arms], ["one", "two"], list("abcd"))
    assert np.isnan(scores.interval("speedup", 0).low) and np.isfinite(scores.values["speedup"]).all()
    assert np.isnan(scores.rank_shares("speedup")).all() and not scores.apart("speedup", 0, 1)
    assert "4 prompts that all runs share; no intervals" in board.leaderboard_figure(scores, title="t").get_supxlabel()
    with pytest.raises(ValueError, match="at least one arm and one prompt"):
        board.score([arm.sums for arm in arms], ["one", "two"], [])


def test_the_figure_fills_what_cannot_be_told_from_the_best():
    generator = np.random.default_rng(0)
    values = np.array([1.2, 2.0, 2.1])
    drawn = values + generator.normal(0, [0.05, 0.1, 0.1], size=(500, 3))
    scores = board.ScoredArms(("slow", "good", "best"), (4, 4, 4), 40, {"speedup": np.vstack([values, drawn])})
    figure = board.leaderboard_figure(scores, title="pocket, EPYC")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["best", "good", "slow"]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [float(dot.get_xdata()[0]) for dot in dots] == [2.1, 2.0, 1.2]
    assert [dot.get_markerfacecolor() == "white" for dot in dots] == [False, False, True]
    caption = " ".join(figure.get_supxlabel().split())
    assert caption.startswith("40 prompts that all runs share; 95% prompt-bootstrap intervals")
    with pytest.raises(ValueError, match="not every run has a speedup"):
        lacking = board.ScoredArms(("a",), (4,), 5, {"speedup": np.array([[np.nan]])})
        board.leaderboard_figure(lacking, title="t")


def test_runs_without_anything_to_compare_are_explained(rounds, stored_run, make_rounds):
    only_baseline = stored_run(rounds[rounds["method"] == "baseline"])
    with pytest.raises(UsageError, match=r"only the baseline's rounds: run it with \+drafter=NAME"):
        board.open_arms(only_baseline)
    apart = pd.concat([rounds[rounds["method"] == "baseline"], make_rounds({"z": [1]}, 2)])
    with pytest.raises(UsageError, match=r"run\d+: the baseline and the speculative rounds have no prompt in common"):
        board.open_arms(stored_run(apart))
    drafted = board.open_arms(stored_run(rounds[rounds["method"] != "baseline"]))
    scores = board.score([arm.sums for arm in drafted.values()], ["one", "two"], list("abcde"), replicates=50)
    assert not scores.known("speedup") and scores.known("tokens_per_round")
