"""Findings of study `topk` on a table whose best cells are known."""

import pandas as pd
import pytest

from specdec.analysis.sections import About, findings


def test_what_the_study_of_top_k_says():
    lines = [
        (name, k, w, f"p{p}", f"p{p}/turn{turn}", "c", 20.0, 40)
        for name in ("b", "a") for k in (1, 2, 8) for w in (1, 2) for p in range(9) for turn in (1, 2)
    ]  # fmt: skip
    rows = pd.DataFrame(lines, columns=["drafter", "k", "w", "prompt", "stream", "category", "context", "tokens"])
    rows["rounds"] = [38 - 2 * row.k - (1 if row.drafter == "b" else 0) + 2 * (row.w == 2) for row in rows.itertuples()]
    about = About("pocket (bfloat16), a machine", "humaneval", False, 200, 0)
    skips = pd.DataFrame([("exceeds the context", "humaneval", 4)], columns=["reason", "category", "count"])
    said = findings("topk", {"topk": rows, "skipped": skips}, about)
    (section,) = said.sections
    assert section.text[0].startswith("Most tokens per call: b 1.90") and "k = 8, w = 1; a 1.82" in section.text[0]
    text = " ".join(section.text)
    assert "b by k = 8" in text and "protocol check" in text and "exceeds the context: 4 humaneval" in text
    assert said.curves["curve/topk/b.w2"] == pytest.approx({1: 40 / 37, 2: 40 / 35, 8: 40 / 23})
    assert said.metrics["topk/a.w1.best"] == pytest.approx(40 / 22) and said.metrics["topk/a.w1.best_k"] == 8
    assert list(section.tables[0][1].columns) == ["k", "a, w = 1", "a, w = 2", "b, w = 1", "b, w = 2"]
