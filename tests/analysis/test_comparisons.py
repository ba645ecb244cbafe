"""Sums over prompts: turns of a conversation stay together, and the bounds are those of the prompt bootstrap."""

import numpy as np
import pandas as pd
import pytest

from specdec.analysis.comparisons import compare, tokens_per_call
from specdec.analysis.intervals import bootstrap, per_round


def table():
    dice = np.random.default_rng(0)
    rows = [
        (name, k, w, f"p{p}", f"p{p}/turn{turn}", "c", 20.0, 40, int(dice.integers(30, 40)))
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
        other = bootstrap(
            sums, lambda columns: {"value": columns["tokens"] / columns["rounds"]}, 400, 3,
            ranges={"value": per_round(cell.w)},
        )["value"]  # fmt: skip
        assert (cell.tokens, cell.tokens_low, cell.tokens_high) == pytest.approx(
            (other.estimate, other.low, other.high)
        )


def test_a_missing_value_stays_missing():
    rows = table().astype({"rounds": float})
    rows.loc[rows["k"] == 8, "rounds"] = np.nan
    sums = compare(rows, ["k"], ["rounds"], 50, 0)
    assert np.isnan(sums.values["rounds"][:, 2]).all() and np.isfinite(sums.values["rounds"][:, :2]).all()
