"""Tests of what a choice of gamma before serving was worth."""

import pandas as pd

from specdec.analysis.acceptance.gamma_choice import NAMES, choice_in_words


def choices(**columns: list[float]) -> pd.DataFrame:
    index = pd.Index([1, 2, 4], name="gamma")
    bounds = {"ci_low": [0.0] * 3, "ci_high": [9.0] * 3}
    return pd.DataFrame({"measured": [1.2, 1.5, 1.0], **bounds, **columns}, index=index)


def test_a_right_and_a_wrong_choice():
    words = choice_in_words(choices(position=[1.3, 1.6, 1.5], **{"capped geometric": [1.3, 1.7, 2.0]}))
    assert words.startswith("gamma 2 is fastest as measured (speedup 1.500)")
    assert "position chooses it too (promises 1.600)" in words
    assert "capped geometric chooses gamma 4 (promises 2.000, gives 1.000, 33.3% less)" in words
    assert words.endswith("No advice was asked for before this run.")
    table = choices(**{NAMES["predicted"]: [0.9, 0.8, 0.7]}).assign(measured=[0.9, 0.8, 0.7])
    words = choice_in_words(table)
    assert "slower than no drafter at all; advice, before the run chooses it too" in words
    assert "No advice" not in words
