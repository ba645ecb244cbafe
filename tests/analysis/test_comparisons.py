"""Sums over prompts: turns of a conversation stay together, and the bounds are those of the prompt bootstrap."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from specdec.analysis.comparisons import compare, tokens_per_call
from specdec.analysis.intervals import bootstrap, per_round


def table():
    dice = np.random.default_rng(0)
    keys = product("ba", (1, 2, 8), (1, 2), range(9), (1, 2))
    rows = [(name, k, w, f"p{p}", f"p{p}/{turn}", "c", 20.0, 40, dice.integers(30, 40)) for name, k, w, p, turn in keys]
    columns = ["drafter", "k", "w", "prompt", "stream", "category", "context", "tokens", "rounds"]
    return pd.DataFrame(rows, columns=columns)


def test_tokens_per_call_are_those_of_the_prompt_bootstrap():
    rows = table()
    cells = tokens_per_call(rows, ["drafter", "k", "w"], 400, 3)
    assert len(cells) == 12 and (cells["prompts"] == 9).all()
    for cell in cells.itertuples():
        mine = rows[(rows["drafter"] == cell.drafter) & (rows["k"] == cell.k) & (rows["w"] == cell.w)]
        sums = mine.groupby("prompt")[["tokens", "rounds"]].sum()
        ratio, ranges = (lambda s: {"value": s["tokens"] / s["rounds"]}), {"value": per_round(cell.w)}
        other = bootstrap(sums, ratio, 400, 3, ranges=ranges)["value"]
        expected = (other.estimate, other.low, other.high)
        assert (cell.tokens, cell.tokens_low, cell.tokens_high) == pytest.approx(expected)


def test_a_missing_value_stays_missing():
    rows = table().astype({"rounds": float})
    rows.loc[rows["k"] == 8, "rounds"] = np.nan
    sums = compare(rows, ["k"], ["rounds"], 50, 0)
    assert np.isnan(sums.values["rounds"][:, 2]).all() and np.isfinite(sums.values["rounds"][:, :2]).all()
