"""Draws t(n) over n: what was measured of a target call, the fitted cost, and what binds it."""

import numpy as np
from matplotlib.figure import Figure

from specdec.theory.roofline import call_flops

from ..figures import style
from ..findings import counted
from .cost_report import CostReport

_CONTEXTS = ((style.BLUE, "o"), (style.ORANGE, "D"), (style.GREEN, "^"), (style.PURPLE, "v"))


@style.in_style
def cost_figure(report: CostReport, *, title: str) -> Figure:
    """Draw t(n)/t(1) over n: measured medians by context, the fit, what binds it at small and at large n, the ridge.

    The two asymptotes and the ridge are those of the middle context, whose symbols are filled.
    """
    model, middle, table = report.model, report.context, report.table
    ridge = model.ridge(middle)
    largest = int(table["rows"].max())
    error = "" if report.by_rows is None else f", {report.by_rows.median:.1%} off in the median on sizes left out"
    caption = (
        f"Points by tokens in the cache: median of {counted(int(table['calls'].max()), 'call')} each, "
        f"{table['rows'].nunique()} values of n from 1 to {largest}; no intervals. Lines: fit{error}. "
        f"At {middle} cached tokens t(1) = {1e3 * report.t1:.3g} ms; black: overhead with reading only (dashed), with "
        f"arithmetic only (dash-dotted)"
        + ("." if ridge is None else f"; they cross at n = {ridge:.3g}, where arithmetic outgrows reading.")
    )
    n = np.arange(1, largest + 1)
    # A call during which the machine did something else would flatten all that is of interest.
    t1s = table[table["rows"] == 1].set_index("context")["seconds"]
    ratios = table["seconds"] / table["context"].map(t1s)
    top = 1.5 * max(float(np.max(model.seconds(n, context) / t1)) for context, t1 in t1s.items())
    beyond = int((ratios > top).sum())
    figure, axes = style.new_figure(title, caption + (f" {counted(beyond, 'point')} above the top." if beyond else ""))
    for index, (context, cells) in enumerate(table.groupby("context")):
        colour, marker = _CONTEXTS[index % len(_CONTEXTS)]
        t1 = float(t1s[context])
        axes.plot(
            cells["rows"],
            cells["seconds"] / t1,
            marker,
            color=colour,
            fillstyle="full" if context == middle else "none",
            label=f"{context} cached",
        )
        axes.plot(n, model.seconds(n, context) / t1, color=colour, linewidth=1.5)
        if context == middle:
            overhead = float(model.overhead(context))
            reading = np.full(len(n), overhead + float(model.reading(context))) / t1
            arithmetic = (overhead + model.flop_seconds * call_flops(model.products, n, context)) / t1
            axes.plot(n, reading, color=style.BLACK, linewidth=1.3, linestyle="--")
            axes.plot(n, arithmetic, color=style.BLACK, linewidth=1.3, linestyle="-.")
    if ridge is not None and 1 <= ridge <= largest:
        axes.axvline(ridge, color=style.GREY, linewidth=1.3, linestyle=":")
        axes.annotate(
            f"n* = {ridge:.3g}",
            (ridge, 0),
            xytext=(4, 5),
            textcoords="offset points",
            color=style.GREY,
        )
    axes.set(xlabel="n, tokens of a call (the draft and its root)", ylabel="t(n) / t(1)", xlim=(0, 1.02 * largest))
    axes.set_ylim(0, top if beyond else None)
    step = max(1, largest // 8)
    axes.set_xticks([1, *range(max(step, 2), largest + 1, step)])
    style.legend_above(axes, 3)
    return figure
