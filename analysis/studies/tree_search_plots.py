"""Pictures of study `tree_search`."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator, PercentFormatter

from ..figures import style
from .tree_search import CHOSEN

_LOOKS = {
    "chain": (style.BLACK, "o", "-"),
    "tree": (style.ORANGE, "^", "-."),
    "dynamic": (style.BLUE, "D", "--"),
}
_APART = {"chain": 1.0, "tree": 2**0.06, "dynamic": 2**-0.06}  # intervals side by side


@style.in_style
def over_nodes(cells: pd.DataFrame, *, title: str, caption: str) -> Figure:
    """Tokens per round and speedup over draft nodes: measured lines with intervals, predictions of trees dotted.

    cells: of `TreeSearch`.
    """
    figure, panels = style.new_panels(title, caption, 6.8, rows=2, sharex=True)
    upper, lower = panels[:, 0]
    for axes, name, label in ((upper, "tokens", "tokens per round"), (lower, "speedup", "speedup")):
        axes.axhline(1.0, color=style.GREY, linewidth=1.6, linestyle=(0, (1, 1.5)))
        for shape in _LOOKS:
            part = cells[cells["shape"] == shape].sort_values("budget")
            if len(part):
                _line(axes, shape, part, name)
        trees = cells[cells["shape"] == "tree"].sort_values("budget")
        axes.plot(trees["budget"], trees[f"predicted_{name}"], color=style.ORANGE, linewidth=1.4, linestyle=":",
                  label="tree, predicted")  # fmt: skip
        chosen = cells[cells["shape"] == CHOSEN]
        axes.plot(chosen["budget"], chosen[name], linestyle="", marker="*", markersize=15, color=style.GREEN,
                  label="chosen tree")  # fmt: skip
        axes.set_ylabel(label)
    budgets = sorted({*cells.loc[cells["shape"] == "tree", "budget"]})
    lower.set_xscale("log", base=2)
    lower.set_xticks(budgets, [str(budget) for budget in budgets])
    lower.xaxis.set_minor_locator(NullLocator())
    lower.set_xlabel("draft nodes that the structure asks for")
    style.legend_above(upper, 3)
    return figure


def _line(axes: Axes, shape: str, part: pd.DataFrame, column: str) -> None:
    colour, marker, dash = _LOOKS[shape]
    axes.errorbar(part["budget"] * _APART[shape], part[column], yerr=_bars(part, column), color=colour, marker=marker,
                  linestyle=dash, elinewidth=1.3, capsize=2.5, label=shape)  # fmt: skip


@style.in_style
def over_depth(accuracy: pd.DataFrame, *, title: str, caption: str) -> Figure:
    """Share of drafts whose first choice, second, ... was right, by depth: one line for each of the first ranks.

    accuracy: as `tree_search.rank_accuracy` has it.
    """
    figure, axes = style.new_figure(title, caption)
    looks: Sequence[tuple[str, str, str]] = (
        (style.BLACK, "o", "-"),
        (style.ORANGE, "^", "-."),
        (style.BLUE, "D", "--"),
        (style.PURPLE, "s", ":"),
    )
    for rank, (colour, marker, dash) in enumerate(looks):
        part = accuracy[(accuracy["rank"] == rank) & (accuracy["tested"] > 0)].sort_values("level")
        if len(part):
            axes.errorbar(part["level"] + 0.03 * rank, part["share"], yerr=_bars(part, "share"), color=colour,
                          marker=marker, linestyle=dash, elinewidth=1.3, capsize=2.5,
                          label=f"choice {rank + 1}")  # fmt: skip
    axes.set(xlabel="depth in the draft", ylabel="share that is the target's next token")
    axes.set_ylim(bottom=0.0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    style.legend_above(axes, 4)
    return figure


def _bars(part: pd.DataFrame, column: str) -> np.ndarray:
    """A percentile interval need not contain the estimate, and there may be none."""
    value, low, high = (part[name].to_numpy(dtype=float) for name in (column, *_ends(part, column)))
    return np.nan_to_num(np.stack([value - low, high - value]).clip(min=0.0))


def _ends(part: pd.DataFrame, column: str) -> tuple[str, str]:
    return (f"{column}_low", f"{column}_high") if f"{column}_low" in part else ("low", "high")
