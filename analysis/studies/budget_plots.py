"""Pictures of study `equal_budget`."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from ..figures import style

_LOOKS = {"chain": (style.BLACK, "o", "-"), "rows": (style.BLUE, "D", "--"), "tree": (style.ORANGE, "^", "-.")}
_APART = {"chain": 1.0, "rows": 2**-0.06, "tree": 2**0.06}  # intervals side by side: as bands they cover each other


@style.in_style
def over_budget(cells: pd.DataFrame, name: str, *, label: str, title: str, caption: str) -> Figure:
    """A line for each shape over the number of draft nodes, and below it the paired differences to the chain.

    cells: of `Budgets`, of one drafter. name: "tokens" or "speedup".
    """
    figure, panels = style.new_panels(title, caption, 6.4, rows=2, sharex=True, height_ratios=[3, 2])
    values, leads = panels[:, 0]
    for axes, column, level in ((values, name, 1.0), (leads, f"{name}_lead", 0.0)):
        axes.axhline(level, color=style.GREY, linewidth=1.6, linestyle=(0, (1, 1.5)))
        for shape, part in cells.groupby("shape", sort=True):
            if column == name or shape != "chain":
                _line(axes, str(shape), part.sort_values("budget"), column)
    values.annotate("plain decoding", (1, 1), xycoords=("axes fraction", "data"), xytext=(-2, 4),
                    textcoords="offset points", ha="right", color=style.GREY)  # fmt: skip
    budgets = sorted(set(cells["budget"]))
    leads.set_xscale("log", base=2)
    leads.set_xticks(budgets, [str(budget) for budget in budgets])
    leads.xaxis.set_minor_locator(NullLocator())
    leads.set(xlabel="draft nodes that the structure asks for", ylabel="over the chain")
    values.set_ylabel(label)
    style.legend_above(values, 3)
    return figure


def _line(axes: Axes, shape: str, part: pd.DataFrame, column: str) -> None:
    colour, marker, dash = _LOOKS[shape]
    value = part[column].to_numpy(dtype=float)
    low, high = (part[f"{column}_{end}"].to_numpy(dtype=float) for end in ("low", "high"))
    # A percentile interval need not contain the estimate.
    bars = np.nan_to_num(np.stack([value - low, high - value]).clip(min=0.0))
    axes.errorbar(part["budget"] * _APART[shape], value, yerr=bars, color=colour, marker=marker, linestyle=dash,
                  elinewidth=1.3, capsize=2.5, label=shape)  # fmt: skip
