"""Draws t(n) over n: what was measured of a target call, the fitted cost, and what binds it."""

from math import nan

import numpy as np
from matplotlib.figure import Figure

from specdec.theory.roofline import call_flops

from ..figures import style
from ..sections import counted
from .cost_report import HOLDS, CostReport

FEW = 5  # tokens of a call that the title names, or the nearest size: a draft of 4 and its root


@style.in_style
def cost_figure(report: CostReport, *, title: str) -> Figure:
    """Draw t(n)/t(1) over n: measured medians by context, the fit where it holds, what binds it at small and at large
    n, the ridge. The two asymptotes and the ridge are those of the middle context, whose symbols are filled. A line
    joins measured sizes that follow each other if the fit is within `HOLDS` of both (`CostReport.holds`).
    """
    model, middle, table, holds = report.model, report.context, report.table, report.holds
    largest = int(table["rows"].max())
    n = np.arange(1, largest + 1)
    # The fit is drawn at each of `n` [N] that has measured sizes on both sides at which it holds.
    held = {
        int(context): np.interp(n, cells["rows"], cells["holds"].astype(float), left=0, right=0) == 1
        for context, cells in table.assign(holds=holds).groupby("context")
    }
    ridge = model.ridge(middle)
    if ridge is not None and not (1 <= ridge <= largest and held[middle][round(ridge) - 1]):
        ridge = None
    # A call during which the machine did something else would flatten all that is of interest.
    t1s = table[table["rows"] == 1].set_index("context")["seconds"]
    ratios = table["seconds"] / table["context"].map(t1s)
    fitted = [np.where(held[int(at)], model.seconds(n, at) / t1, 0.0).max() for at, t1 in t1s.items()]
    top = 1.5 * max(*fitted, float(ratios.median()), 1.0)
    beyond = int((ratios > top).sum())
    # The caption says what was measured, where the fit is drawn, and what the black lines are.
    error = "" if report.by_rows is None else f", {report.by_rows.median:.1%} off in the median on sizes left out"
    fit = f"Lines: fit{error}, drawn where it is within {HOLDS:.0%} of the points ({holds.sum()} of {len(holds)})"
    if not holds.any():
        fit = f"No line: the fit{error} is nowhere within {HOLDS:.0%} of the points"
    asymptotes = ""
    if holds[table["context"] == middle].any():
        asymptotes = "; black: overhead with reading only (dashed), with arithmetic only (dash-dotted)"
    crossing = "" if ridge is None else f"; they cross at n = {ridge:.3g}, where arithmetic outgrows reading"
    caption = (
        f"Points by tokens in the cache: median of {counted(int(table['calls'].max()), 'call')} each, "
        f"{table['rows'].nunique()} values of n from 1 to {largest}; no intervals. {fit}. At "
        f"{middle} cached tokens t(1) = {1e3 * report.t1:.3g} ms{asymptotes}{crossing}."
    )
    caption += f" {counted(beyond, 'point')} above the top." if beyond else ""
    cells = table[table["context"] == middle].set_index("rows")["seconds"]
    few = min((rows for rows in cells.index if rows > 1), key=lambda rows: abs(rows - FEW), default=1)
    costs = [f"{rows} tokens {cells[rows] / report.t1:.2f} t(1)" for rows in dict.fromkeys((few, cells.index[-1]))]
    figure, axes = style.new_figure(f"A call on {', on '.join(costs)}\n{title}", caption)
    for index, (context, cells) in enumerate(table.groupby("context")):
        colour, marker, *_ = style.look(index)
        t1, drawn = float(t1s[context]), held[int(context)]
        fill = "full" if context == middle else "none"
        axes.plot(cells["rows"], cells["seconds"] / t1, marker, color=colour, fillstyle=fill, label=f"{context} cached")
        for cell in cells.itertuples():
            ratio, size = cell.seconds / t1, f"{context} cached, n {cell.rows}"
            style.point_tip(axes, cell.rows, ratio, f"{size}: {ratio:.3f} t(1), {1e3 * cell.seconds:.3g} ms")
        axes.plot(n, np.where(drawn, model.seconds(n, context) / t1, nan), color=colour, linewidth=1.5)
        if context == middle:
            overhead = float(model.overhead(context))
            reading = (overhead + np.broadcast_to(model.reading(n, context), len(n))) / t1
            arithmetic = (overhead + model.flop_seconds * call_flops(model.products, n, context)) / t1
            for bound, dash in ((reading, "--"), (arithmetic, "-.")):
                axes.plot(n, np.where(drawn, bound, nan), color=style.BLACK, linewidth=1.3, linestyle=dash)
    if ridge is not None:
        axes.axvline(ridge, color=style.GREY, linewidth=1.3, linestyle=":")
        axes.annotate(f"n* = {ridge:.3g}", (ridge, 0), xytext=(4, 5), textcoords="offset points", color=style.GREY)
    axes.set(xlabel="n, tokens of a call (the draft and its root)", ylabel="t(n) / t(1)", xlim=(0, 1.02 * largest))
    step = max(1, largest // 8)
    axes.set(ylim=(0, top if beyond else None), xticks=[1, *range(max(step, 2), largest + 1, step)])
    style.legend_above(axes, 3)
    return figure
