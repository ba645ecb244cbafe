"""The fit of calls on batches: coefficients that made the times are found; a left-out batch is predicted."""

import itertools

import pandas as pd
import pytest

from specdec.analysis.cost.server_calls import fit_server_calls
from specdec.cost_model import DraftCost, SimulatedCost

TRUE = {"fixed_s": 4e-3, "row_s": 2e-4, "cached_s": 5e-7, "key_s": 3e-8}


def times(batches=(1, 2, 8), true=TRUE):
    rest = dict.fromkeys(("token_s", "weights_s", "lookup_s", "lookup_share", "overhead_s"), 0.0)
    draft = DraftCost(fixed_s=0.0, step_s=0.0, cached_s=0.0)
    cost = SimulatedCost(name="", source="", tile=1, overlap=False, draft=draft, **rest, **true)
    cells = itertools.product(batches, (0, 1, 4), (64, 256), range(2))
    lines = [(k, w, c, float(cost.seconds(k * (w + 1), c, k))) for k, w, c, _ in cells]
    return pd.DataFrame(lines, columns=["k", "w", "context", "seconds"])


def test_the_coefficients_that_made_the_times_are_found():
    fit = fit_server_calls(times())
    assert fit.coefficients == pytest.approx(TRUE, rel=1e-6)
    assert fit.worst_error < 1e-6
    table = times((1, 2))
    table.loc[0, "seconds"] = float("nan")
    fit = fit_server_calls(table)
    assert fit.coefficients["row_s"] == pytest.approx(TRUE["row_s"], rel=1e-6)
    assert fit.median_error != fit.median_error
    with pytest.raises(ValueError, match="at least three"):
        fit_server_calls(times((1,)).head(2))


def test_a_largest_batch_that_goes_another_way_shows_in_its_error():
    table = times()
    table.loc[table["k"] == 8, "seconds"] *= 2
    fit = fit_server_calls(table)
    assert fit.median_error == pytest.approx(0.5) and fit.worst_error == pytest.approx(0.5)
