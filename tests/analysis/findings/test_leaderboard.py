"""Ranks, intervals and tables of several arms on the same prompts, computed another way."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from specdec.analysis.findings import leaderboard as board
from specdec.analysis.findings.compare import open_each
from specdec.analysis.intervals import bootstrap, per_round
from specdec.analysis.read.runs import Run
from specdec.errors import UsageError

PLAIN = {"draft_s": 0.0, "verify_s": 0.02, "accept_s": 0.0, "commit_s": 0.0, "round_s": 0.025}
DRAFTED = {"draft_s": 0.004, "verify_s": 0.024, "accept_s": 0.0, "commit_s": 0.0, "round_s": 0.03}


@pytest.fixture
def rounds(make_rounds: Callable[..., pd.DataFrame]) -> pd.DataFrame:
    two = {"a": [2, 2, 1], "b": [0, 0, 1], "c": [2, 0], "d": [1, 1, 1, 0], "e": [2, 1, 2]}
    one = {name: [min(count, 1) for count in counts] for name, counts in two.items()}
    plain = make_rounds({name: [0] * 8 for name in two}, 0, method="baseline", durations=PLAIN)
    parts = [make_rounds(two, 2, durations=DRAFTED), make_rounds(one, 1, durations=DRAFTED), plain]
    table = pd.concat(parts, ignore_index=True)
    return table.assign(category=np.where(table["prompt"] < "c", "code", "text"))


@pytest.fixture
def arms(rounds: pd.DataFrame, stored_run: Callable[..., Run]) -> list[board.RunArm]:
    return list(board.open_arms(stored_run(rounds)).values())


def test_values_and_intervals_are_ratios_of_sums_with_a_prompt_bootstrap(arms):
    def values(s):
        speedup = s["baseline_round_s"] / s["baseline_tokens"] * s["tokens"] / s["round_s"]
        return {"speedup": speedup, "tokens_per_round": s["tokens"] / s["rounds"]}

    scores = board.score([arm.sums for arm in arms], ["one", "two"], list("abcde"), replicates=300, depths=[1, 2])
    for index, arm in enumerate(arms):
        ranges = {"tokens_per_round": per_round(arm.gamma)}
        for quantity, expected in bootstrap(arm.sums, values, replicates=300, ranges=ranges).items():
            ours = scores.interval(quantity, index)
            bounds = (expected.estimate, expected.low, expected.high)
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
    drawn = np.array([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0], [2.0, 3.0, 1.0], [2.0, 2.0, 1.0], [3.0, 2.0, 2.0]])
    scores = board.ScoredArms(("a", "b", "c"), (4, 4, 4), 5, {"speedup": drawn})
    shares = [[(1 + 0 + 0.5 + 1) / 4, (0 + 1 + 0.5) / 4, 0], [1.5 / 4, (1 + 0.5 + 0.5) / 4, 0.5 / 4], [0, 1 / 8, 7 / 8]]
    np.testing.assert_allclose(scores.rank_shares("speedup"), shares)
    table = scores.rank_table()
    assert table["best"].tolist() == ["62%", "38%", "0%"]
    assert list(table.columns) == ["run", "best", "rank 2", "rank 3"]


def test_the_table_has_categories_beside_overall_and_cost(arms):
    sums = [arm.sums for arm in arms]
    scores = board.score(sums, ["one", "two"], list("abcde"), 200, depths=[arm.gamma for arm in arms])
    table = board.leaderboard(scores, arms, list("abcde"), replicates=200)
    assert list(table.columns) == [
        *("rank", "run", "gamma", "code (2)", "text (3)", "overall", "tokens per round", "g", "v", "o")
    ]
    assert table["run"].tolist() == ["two", "one"] and table["gamma"].tolist() == ["2", "1"]
    code = arms[1].sums.loc[["a", "b"]].sum()
    speedup = 0.025 * code["tokens"] / code["round_s"]
    assert table["code (2)"][0] == f"{speedup:.2f} (–)" and table["overall"][0].count(" to ") == 1
    assert board.categories(arms, ["a", "c"]) == {}  # one prompt in each
    few = board.score(sums, ["one", "two"], ["a", "b"], 50)
    assert list(board.leaderboard(few, arms, ["a", "b"], 50).columns)[3] == "overall"


def test_the_figure_fills_what_cannot_be_told_from_the_best():
    values = np.array([1.2, 2.0, 2.1])
    drawn = values + np.random.default_rng(0).normal(0, [0.05, 0.1, 0.1], size=(500, 3))
    scores = board.ScoredArms(("slow", "good", "best"), (4, 4, 4), 40, {"speedup": np.vstack([values, drawn])})
    figure = board.leaderboard_figure(scores, title="pocket, EPYC")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["best", "good", "slow"]
    dots = [
        (float(at.get_xdata()[0]), at.get_markerfacecolor() == "white") for at in axes.lines if at.get_marker() == "o"
    ]
    assert dots == [(2.1, False), (2.0, False), (1.2, True)]
    assert "40 prompts that all runs share; 95% prompt-bootstrap intervals" in figure.get_supxlabel().replace("\n", " ")


def test_runs_without_anything_to_compare_are_explained(rounds, stored_run, make_rounds):
    only_baseline = stored_run(rounds[rounds["method"] == "baseline"])
    with pytest.raises(UsageError, match=r"only the baseline's rounds: run it with \+drafter=NAME"):
        board.open_arms(only_baseline)
    whole = stored_run(rounds)
    (opened,), (sentence,) = open_each([whole, only_baseline])
    assert [arm.run for arm in opened.values()] == [whole] * 2 and sentence.startswith("Not compared: ")
    apart = pd.concat([rounds[rounds["method"] == "baseline"], make_rounds({"z": [1]}, 2)])
    with pytest.raises(UsageError, match=r"run\d+: the baseline and the speculative rounds have no prompt in common"):
        board.open_arms(stored_run(apart))
    drafted = board.open_arms(stored_run(rounds[rounds["method"] != "baseline"]))
    scores = board.score([arm.sums for arm in drafted.values()], ["one", "two"], list("abcde"), replicates=50)
    assert not scores.known("speedup") and scores.known("tokens_per_round")
