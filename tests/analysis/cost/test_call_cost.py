"""The cost model: what is put in comes out, by the tiles and overlap that made it, and the errors are honest."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from specdec.analysis.cost.call_cost import CallCost, call_table, fit_cost, fit_server_calls, held_out, predicted_calls
from specdec.analysis.cost.cost_figure import cost_figure
from specdec.analysis.cost.cost_report import CostReport
from specdec.cost_model import DraftCost, SimulatedCost
from specdec.theory.roofline import Product, distinct_experts

PRODUCTS = (
    Product("q_proj", 320, 320, 8, 2),
    Product("k_proj", 320, 320, 8, 2),
    Product("lm_head", 320, 4096, 1, 2),
    Product("attention scores", 64, None, 40, 2),
    Product("attention values", None, 64, 40, 2),
)
ROWS = (1, 2, 4, 6, 8, 16, 24, 48, 64)
MACHINE = {"bytes_per_second": 1e9, "flops_per_second": 1e10, "threshold": 10.0, "dtype": "bfloat16"}


def model(**changes):
    values = dict(fixed=2e-3, token_seconds=1e-6, flop_seconds=1e-10, tile=1, overlap=True, bandwidth=1e9)
    return CallCost(**{**values, **changes}, products=PRODUCTS)


def cells(truth, contexts=(64, 512, 1024), noise=0.0, rows=ROWS):
    generator = np.random.default_rng(0)
    return [
        {"rows": n, "context": s, "seconds": list(truth.seconds(n, s) * np.exp(noise * generator.standard_normal(3)))}
        for s in contexts
        for n in rows
    ]


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("tile", [1, 8])
def test_recovers_the_model_that_made_the_times(tile, overlap):
    truth = model(tile=tile, overlap=overlap)
    # Sizes that fill no tile, on both sides of the ridge.
    rows = (1, 2, 4, 6, 9, 12, 16, 20, 29, 36, 50, 64)
    found = fit_cost(call_table(cells(truth, rows=rows)), PRODUCTS, 1e9)
    assert (found.tile, found.overlap) == (tile, overlap)
    for name in ("fixed", "token_seconds", "flop_seconds"):
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=1e-3), name
    assert found.ridge(512) == pytest.approx(truth.ridge(512), rel=1e-3)


def test_one_context_puts_its_share_into_the_fixed_cost_and_needs_three_sizes():
    found = fit_cost(call_table(cells(model(), contexts=(512,))), PRODUCTS, 1e9)
    assert found.token_seconds == 0
    assert found.fixed == pytest.approx(2e-3 + 512e-6, rel=1e-3)
    with pytest.raises(ValueError, match="three numbers of rows"):
        fit_cost(call_table(cells(model(), rows=(1, 2))), PRODUCTS, 1e9)
    table = call_table([{"rows": 1, "context": 8, "seconds": [1.0, 9.0, 2.0]}])
    assert table.to_dict("records") == [{"rows": 1, "context": 8, "seconds": 2.0, "calls": 3}]  # the median


def test_held_out_errors_show_noise_and_a_size_that_was_not_seen():
    def fit(table):
        return fit_cost(table, PRODUCTS, 1e9)

    assert held_out(call_table(cells(model())), fit).worst < 1e-2
    noisy = held_out(call_table(cells(model(), noise=0.1)), fit)
    assert 0.01 < noisy.median < 0.15 and noisy.cells == 27
    assert held_out(call_table(cells(model())), fit, "context").worst < 1e-2
    assert held_out(call_table(cells(model(), contexts=(64, 512))), fit, "context") is None
    # All sizes but one are exact, so that the others foretell what the odd one ought to be: half of what it was.
    odd = cells(model())
    for cell in odd:
        cell["seconds"] = [value * (2 if cell["rows"] == 64 else 1) for value in cell["seconds"]]
    assert held_out(call_table(odd), fit).worst == pytest.approx(0.5, abs=1e-3)


def test_no_other_parameters_have_smaller_relative_errors():
    """Times that no parameters meet: a step of any of them makes the sum of squared relative residuals larger."""
    table = call_table(cells(model(overlap=False), noise=0.3))
    found = fit_cost(table, PRODUCTS, 1e9)

    def misfit(cost):
        predicted = cost.seconds(table["rows"].to_numpy(), table["context"].to_numpy())
        return float(((predicted / table["seconds"] - 1) ** 2).sum())

    for name in ("fixed", "token_seconds", "flop_seconds"):
        for factor in (0.98, 1.02):
            assert misfit(replace(found, **{name: factor * getattr(found, name)})) > misfit(found) - 1e-12, name


def test_metrics_words_and_figure_of_a_run():
    report = CostReport({"cells": cells(model(), noise=0.01), "complete": True}, PRODUCTS, MACHINE)
    assert set(report.metrics) == {"cost/fit_error", "cost/ridge_n", "cost/bandwidth_share"}
    assert report.context == 512 and report.metrics["cost/fit_error"] < 0.03
    weights = 2 * (2 * 8 * 320 * 320 + 320 * 4096)
    read = weights + 512 * 2 * 40 * 64 * 2
    assert report.metrics["cost/bandwidth_share"] == pytest.approx(read / report.t1 / 1e9)
    # The machine is ten times as fast as this model's arithmetic only in the ratio that the threshold states.
    assert report.machine_ridge == pytest.approx(read * 10 / (weights + 2 * 2 * 40 * 64 * 513), rel=1e-9)
    json.dumps(report.as_dict(), allow_nan=False)
    assert report.fit_in_words().startswith("Fit of 27 cells (rows by context), the median of 3 calls each. At 512 ")
    assert "leave the memory-bound region at n = " in report.roofline_in_words()
    (axes,) = cost_figure(report, title="a model, a machine").axes
    markers = [line for line in axes.lines if line.get_marker() not in ("None", None, "")]
    assert [len(line.get_xdata()) for line in markers] == [len(ROWS)] * 3
    assert all(line.get_ydata()[0] == 1 for line in markers)  # t(1)/t(1)
    assert any("n* =" in text.get_text() for text in axes.texts)


def test_a_disturbed_call_does_not_flatten_the_figure():
    stalled = cells(model(), noise=0.01)
    stalled[5]["seconds"] = [100 * value for value in stalled[5]["seconds"]]
    figure = cost_figure(CostReport({"cells": stalled, "complete": True}, PRODUCTS, MACHINE), title="stalled")
    assert figure.axes[0].get_ylim()[1] < 20
    assert "1 point above the top" in figure.get_supxlabel().replace("\n", " ")


TRUE = {"fixed_s": 4e-3, "row_s": 2e-4, "cached_s": 5e-7, "key_s": 3e-8}


def times(batches=(1, 2, 8), true=TRUE):
    rest = dict.fromkeys(("token_s", "weights_s", "lookup_s", "lookup_share", "overhead_s"), 0.0)
    draft = DraftCost(fixed_s=0.0, step_s=0.0, cached_s=0.0)
    cost = SimulatedCost(name="", source="", tile=1, overlap=False, draft=draft, **rest, **true)
    cells = itertools.product(batches, (0, 1, 4), (64, 256), range(2))
    lines = [(k, w, c, float(cost.seconds(k * (w + 1), c, k))) for k, w, c, _ in cells]
    return pd.DataFrame(lines, columns=["k", "w", "context", "seconds"])


def test_the_coefficients_that_made_the_times_are_found():
    coefficients, error = fit_server_calls(times())
    assert coefficients == pytest.approx(TRUE, rel=1e-6)
    assert error.worst < 1e-6
    table = times((1, 2))
    table.loc[0, "seconds"] = float("nan")
    coefficients, error = fit_server_calls(table)
    assert coefficients["row_s"] == pytest.approx(TRUE["row_s"], rel=1e-6)
    assert error.median != error.median
    with pytest.raises(ValueError, match="at least three"):
        fit_server_calls(times((1,)).head(2))


def test_a_largest_batch_that_goes_another_way_shows_in_its_error():
    table = times()
    table.loc[table["k"] == 8, "seconds"] *= 2
    _, error = fit_server_calls(table)
    assert error.median == pytest.approx(0.5) and error.worst == pytest.approx(0.5)


TOKENS = np.arange(1, 9)
READS = 10 + 3 * distinct_experts([0.25] * 8, TOKENS)


@pytest.mark.parametrize(("reading", "computing"), [(2.0, 0.5), (2.0, 0.0), (0.0, 3.0)])
def test_two_calls_tell_what_reading_and_computing_cost(reading, computing):
    seconds = reading * READS + computing * TOKENS
    seen = np.where(np.isin(TOKENS, (1, 5)), seconds, np.nan)  # the others are predicted unseen
    assert predicted_calls(TOKENS, READS, seen, (1, 5)) / seconds == pytest.approx(1)


def test_a_call_is_never_predicted_to_gain_by_tokens_and_one_call_tells_too_little():
    predicted = predicted_calls(TOKENS, READS, 5 + 0.01 * TOKENS, (1, 8))
    assert predicted / READS == pytest.approx(predicted[0] / READS[0])
    with pytest.raises(ValueError, match=r"calls on \[1, 99\] tokens tell no two coefficients"):
        predicted_calls(TOKENS, READS, READS, (1, 99))
