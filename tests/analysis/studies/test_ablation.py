"""Distributions by strategy on histograms that can be counted by hand."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from specdec.analysis.sections import About, FinishedStudy, findings
from specdec.analysis.studies.ablation import contributions, distribution, strategies
from specdec.analysis.study_sets import side_by_side

ABOUT = About("mixed on pocket (float32), a machine", "stdlib_code", False, 300, 0)
# Two prompts, three times each, 10 rounds each, 2 rows: "x" has a row in all rounds, "y" one or two in some.
COUNTS = [
    ("one", "accepted", "x", 1, 4), ("one", "accepted", "x", 3, 2), ("one", "accepted", "y", 2, 1),
    ("one", "accepted", "", 0, 3), ("one", "rank", "x", 0, 5), ("one", "rank", "x", 1, 1), ("one", "rank", "y", 0, 1),
    ("one", "allotment", "x", 1, 10), ("one", "allotment", "y", 1, 6),
    ("two", "accepted", "x", 3, 2), ("two", "accepted", "", 0, 8), ("two", "rank", "x", 0, 2),
    ("two", "allotment", "x", 2, 10),
]  # fmt: skip
TIMES = 3
REPLAY = pd.DataFrame(
    [(2, 3, f"{name}{at}", f"{name}{at}", "c", 50.0, 20, 10, 5.0) for name in ("one", "two") for at in range(TIMES)],
    columns=["k", "w", "stream", "prompt", "category", "context", "tokens", "rounds", "accepted"],
)


def histograms():
    names = ["prompt", "histogram", "strategy", "value", "count"]
    counts = [(f"{prompt}{at}", *rest) for prompt, *rest in COUNTS for at in range(TIMES)]
    return pd.DataFrame(counts, columns=names).assign(stream=lambda table: table["prompt"], k=2, w=3)


def shares(name, strategy):
    found = distribution(histograms(), REPLAY, name, strategy, ABOUT)
    assert found["share_low"].between(0, found["share"]).all() and found["share_high"].between(found["share"], 1).all()
    return dict(zip(found["value"], found["share"], strict=True))


def test_shares_are_of_the_rounds_of_a_strategy():
    assert strategies(histograms()) == ["x", "y"]
    assert shares("accepted", "x") == pytest.approx({1: 4 / 8, 3: 4 / 8})
    assert shares("accepted", "y") == {2: 1}
    assert shares("rank", "x") == pytest.approx({0: 7 / 8, 1: 1 / 8})
    assert shares("allotment", "x") == {0: 0, 1: 0.5, 2: 0.5}
    assert shares("allotment", "y") == pytest.approx({0: 14 / 20, 1: 6 / 20})
    found = contributions(histograms(), REPLAY, ["x", "y"], ABOUT).set_index("strategy")
    assert found.loc["x", "rows"] == pytest.approx(30 / 20) and found.loc["y", "rows"] == pytest.approx(6 / 20)
    assert found["of_rows"].sum() == found["of_wins"].sum() == found["tokens"].sum() == pytest.approx(1)
    assert found.loc["x", "wins"] == pytest.approx(8 / 20) and found.loc["x", "per_row"] == pytest.approx(8 / 30)
    assert found.loc["x", "tokens"] == pytest.approx(16 / 18) and found.loc["y", "length"] == pytest.approx(2)
    assert (found["wins_low"] <= found["wins"]).all() and (found["wins"] <= found["wins_high"]).all()
    one = histograms().query("prompt == 'one0'"), REPLAY.query("prompt == 'one0'")
    found = distribution(*one, "accepted", "x", ABOUT)
    assert found["share"].sum() == 1 and np.isnan(found["share_low"]).all()


def test_what_is_said_of_one_prompt_set_and_of_two():
    skips = pd.DataFrame(columns=["reason", "category", "count"])
    tables = {"replay": REPLAY, "histograms": histograms(), "skipped": skips}
    said = findings("ablation", tables, ABOUT)
    answer = said.sections[0].text[0]
    assert answer.startswith("x has 89% (") and "in 55% of 60 rounds no row" in answer
    assert said.curves["curve/ablation/rank.x"] == pytest.approx({1: 7 / 8, 2: 1 / 8})
    assert said.metrics["ablation/tokens_per_call"] == 2 and said.metrics["ablation/y.wins"] == pytest.approx(1 / 20)
    names = [section.figures[0][0] for section in said.sections]
    assert names == ["contribution", "accepted_lengths", "ranks", "allotment"]
    lengths = said.sections[1].tables[0][1].set_index("accepted tokens")
    assert lengths.loc[2, "x"] == "–" and lengths.loc[3, "x"].startswith("50.0%")
    (section,) = side_by_side([FinishedStudy("ablation", tables, replace(ABOUT, prompts=name), "") for name in "ab"])
    ((_, table),) = section.tables
    assert table["prompt set"].tolist() == ["a"] * 2 + ["b"] * 2 and "b: x 89%" in section.text[0]
    assert table["tokens per call"].str.startswith("2.00").all() and len(section.figures) == 2
