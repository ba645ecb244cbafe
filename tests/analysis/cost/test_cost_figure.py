"""The picture of a call's cost: the fit is drawn where it describes the calls, and nowhere else."""

import numpy as np

from specdec.analysis.cost.cost_figure import cost_figure
from specdec.analysis.cost.cost_report import CostReport
from specdec.theory.roofline import Product

PRODUCTS = [Product("mlp", 1024, 4096, 1, 2, 1)]
MACHINE = {"bytes_per_second": 2e10, "flops_per_second": 1e11, "dtype": "float32", "threshold": 5.0}
SIZES = (1, 2, 4, 8, 16, 32)


def report(spoilt: tuple[int, ...] = ()) -> CostReport:
    """Calls of 1 ms and 0.1 ms a token behind 64 and 128 cached tokens; `spoilt` ones take twice as long at 64."""
    cells = [
        {"rows": n, "context": context, "seconds": [(1e-3 + 1e-4 * n) * (1 + (n in spoilt and context == 64))] * 3}
        for context in (64, 128)
        for n in SIZES
    ]
    return CostReport({"cells": cells, "complete": True}, PRODUCTS, MACHINE)


def fits(found: CostReport) -> list[np.ndarray]:
    (axes,) = cost_figure(found, title="t").axes
    drawn = [line for line in axes.lines if line.get_linestyle() == "-"]
    return [np.asarray(line.get_ydata()) for line in drawn if len(line.get_xdata()) == 32]


def caption(found: CostReport) -> str:
    return " ".join(cost_figure(found, title="t").get_supxlabel().split())


def test_a_fit_is_drawn_where_it_holds_and_not_between_sizes_where_it_fails():
    found = report()
    assert found.holds.all() and all(np.isfinite(line).all() for line in fits(found))
    assert "within 10% of the points (12 of 12)" in caption(found) and "black:" in caption(found)
    found = report(spoilt=(8,))
    at_64, at_128 = fits(found)
    assert np.isnan(at_64[4:15]).all() and np.isfinite(at_64[[0, 3, 15, 31]]).all()  # n from 5 to 15
    assert np.isfinite(at_128).all()
    assert "It holds, within 10% of what was measured, at 11 of 12 cells" in found.fit_in_words()


def test_a_fit_that_holds_nowhere_is_not_drawn():
    cells = [{"rows": n, "context": 64, "seconds": [1e-3 * (1 + 4 * (place % 2))]} for place, n in enumerate(SIZES)]
    found = CostReport({"cells": cells, "complete": True}, PRODUCTS, MACHINE)
    assert not found.holds.any() and all(np.isnan(line).all() for line in fits(found))
    assert "No line: the fit" in caption(found) and "black" not in caption(found) and "cross" not in caption(found)
