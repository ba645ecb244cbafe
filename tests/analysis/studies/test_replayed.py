"""Sums over prompts: turns of a conversation stay together, and the bounds are those of the prompt bootstrap."""

import numpy as np
import pandas as pd
import pytest

from specdec.analysis.findings import About, findings
from specdec.analysis.intervals import bootstrap
from specdec.analysis.studies.replayed import prompt_sums, tokens_per_call


def table():
    dice = np.random.default_rng(0)
    rows = [
        (name, k, w, f"p{p}", f"p{p}/turn{turn}", "c", 20.0, 40, int(dice.integers(10, 40)))
        for name in ("b", "a") for k in (1, 2, 8) for w in (1, 2) for p in range(9) for turn in (1, 2)
    ]  # fmt: skip
    return pd.DataFrame(
        rows, columns=["drafter", "k", "w", "prompt", "stream", "category", "context", "tokens", "rounds"]
    )


def test_tokens_per_call_are_those_of_the_prompt_bootstrap():
    rows = table()
    cells = tokens_per_call(rows, ["drafter", "k", "w"], 400, 3)
    assert len(cells) == 12 and (cells["prompts"] == 9).all()
    for cell in cells.itertuples():
        mine = rows[(rows["drafter"] == cell.drafter) & (rows["k"] == cell.k) & (rows["w"] == cell.w)]
        sums = mine.groupby("prompt")[["tokens", "rounds"]].sum()
        other = bootstrap(sums, lambda columns: {"value": columns["tokens"] / columns["rounds"]}, 400, 3)["value"]
        assert (cell.value, cell.low, cell.high) == pytest.approx((other.estimate, other.low, other.high))


def test_a_missing_value_stays_missing():
    rows = table().astype({"rounds": float})
    rows.loc[rows["k"] == 8, "rounds"] = np.nan
    sums = prompt_sums(rows, ["k"], ["rounds"], 50, 0)
    assert np.isnan(sums.values["rounds"][:, 2]).all() and np.isfinite(sums.values["rounds"][:, :2]).all()


def test_what_the_study_of_top_k_says():
    rows = table()
    rows["rounds"] = [40 - 2 * row.k - (5 if row.drafter == "b" else 0) + 3 * (row.w == 2) for row in rows.itertuples()]
    about = About("pocket (bfloat16), a machine", "humaneval", False, 200, 0)
    skips = pd.DataFrame([("exceeds the context", "humaneval", 4)], columns=["reason", "category", "count"])
    said = findings("topk", {"topk": rows, "skipped": skips}, about)
    (section,) = said.sections
    assert section.text[0].startswith("Most tokens per call: b 2.11") and "k = 8, w = 1; a 1.67" in section.text[0]
    text = " ".join(section.text)
    assert "b by k = 8" in text and "protocol check" in text and "exceeds the context: 4 humaneval" in text
    assert said.curves["curve.topk.b.w2"] == pytest.approx({1: 40 / 36, 2: 40 / 34, 8: 40 / 22})
    assert said.metrics["topk.a.w1.best"] == pytest.approx(40 / 24) and said.metrics["topk.a.w1.best_k"] == 8
    assert list(section.tables[0][1].columns) == ["k", "a, w = 1", "a, w = 2", "b, w = 1", "b, w = 2"]
