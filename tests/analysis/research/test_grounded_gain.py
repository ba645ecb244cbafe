"""The ratio of grounded to independent heads beside the paper's, from the committed session."""

import json

import pytest

from specdec.analysis.research import grounded_gain


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [(1.02, 1.12, "which our interval contains"), (1.1, 1.2, "less than our"), (0.9, 1.05, "more than our interval")],
)
def test_the_papers_ratio_is_told_from_ours_by_the_interval(tmp_path, monkeypatch, low, high, says):
    kept = json.loads(grounded_gain.RESULT.read_text())
    next(line for line in kept["figures"] if line["figure"] == "speedup.ratio").update(low=low, high=high)
    (tmp_path / "kept.json").write_text(json.dumps(kept))
    monkeypatch.setattr(grounded_gain, "RESULT", tmp_path / "kept.json")
    assert says in grounded_gain.committed_section().text[0].partition(";")[0]


def test_a_committed_figure_is_that_of_its_prompts_over_all_categories():
    line = {"prompts": "mt_bench", "method": "grounded against medusa", "category": "all", "count": 80}
    lines = [
        line | {"figure": "speedup.ratio", "value": 9.0, "low": 8.0, "high": 10.0, "category": "coding"},
        line | {"figure": "speedup.ratio", "value": 7.0, "low": 6.0, "high": 8.0, "prompts": "stdlib_code"},
        line | {"figure": "tokens_per_round.ratio", "value": 5.0, "low": 4.0, "high": 6.0},
        line | {"figure": "speedup.ratio", "value": 1.1, "low": 1.0, "high": 1.2},
    ]
    found = grounded_gain.figure_of(lines, "mt_bench", "speedup.ratio")
    assert (found.estimate, found.low, found.high, found.prompts) == (1.1, 1.0, 1.2, 80)
    with pytest.raises(KeyError, match="no tokens_per_round.difference"):
        grounded_gain.figure_of(lines, "mt_bench", "tokens_per_round.difference")
