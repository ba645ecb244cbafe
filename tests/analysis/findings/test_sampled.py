"""The figures of a line at a temperature, against sums by hand."""

import pandas as pd
import pytest

from specdec.analysis.findings.sampled import COLUMNS, sampled_metrics


def texts() -> pd.DataFrame:
    """Two prompts, of which the drafter gains a factor of 2 and of 1.5 on a token; its texts have other lengths."""
    lines = [
        (0.5, "baseline", 0, 0, "a", "x", 10, 10, 0, 0, 1.0, 10.0, False),
        (0.5, "ours", 4, 0, "a", "x", 20, 5, 16, 3, 2.0, 10.0, True),
        (0.5, "baseline", 0, 0, "b", "x", 30, 30, 0, 0, 1.0, 30.0, False),
        (0.5, "ours", 4, 0, "b", "x", 30, 15, 15, 13, 1.0, 20.0, False),
    ]
    return pd.DataFrame(lines, columns=list(COLUMNS))


def test_times_of_a_token_are_compared_not_times_of_a_text():
    found = sampled_metrics(texts(), 2000, 0)
    assert (found["sampled/temperature"], found["sampled/prompts"], found["sampled/repetition.share"]) == (0.5, 2, 0.5)
    assert found["sampled/speedup"] == pytest.approx((40 / 40) / (30 / 50))
    assert found["sampled/speedup.end_to_end"] == pytest.approx((42 / 40) / (33 / 50))
    assert found["sampled/tokens_per_round"] == pytest.approx(50 / 20)
    assert found["sampled/alpha.mle"] == pytest.approx(31 / 47)
    assert found["sampled/speedup.ci_low"] <= 1.5 + 1e-9 and found["sampled/speedup.ci_high"] >= 2 - 1e-9
    found = sampled_metrics(texts().iloc[:3], 100, 0)
    assert found["sampled/speedup"] == pytest.approx(2) and "sampled/speedup.ci_low" not in found
    assert sampled_metrics(pd.DataFrame(), 100, 0) == {}
