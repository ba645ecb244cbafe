"""The ratio of grounded to independent heads beside the paper's, from the committed session."""

import json

import pytest

from specdec.analysis.heads import grounded_gain


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [(1.02, 1.12, "which our interval contains"), (1.1, 1.2, "less than our"), (0.9, 1.05, "more than our interval")],
)
def test_the_papers_ratio_is_told_from_ours_by_the_interval(tmp_path, monkeypatch, low, high, says):
    kept = json.loads(grounded_gain.RESULT.read_text())
    first = next(line for line in kept["figures"] if line["figure"] == "speedup.ratio")
    first |= {"low": low, "high": high}
    (tmp_path / "kept.json").write_text(json.dumps(kept))
    monkeypatch.setattr(grounded_gain, "RESULT", tmp_path / "kept.json")
    assert says in grounded_gain.committed_section().text[0].partition(";")[0]


def test_the_committed_bars_have_every_method_in_every_category():
    (_, table), *_ = grounded_gain.committed_section().tables
    assert len(table) == 27 and set(table["method"]) == {"baseline", "medusa", "grounded"}
    plain = table[table["method"] == "baseline"]
    assert (plain["tokens per round"] == "–").all() and plain["tokens/s"].str.contains("to").all()
    assert not table[["category", "method"]].duplicated().any()
