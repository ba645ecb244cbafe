"""The figures of study `grid`: heat maps over k and w with values in the cells, and live runs beside predictions."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ..figures import style

Block = tuple[int, int]


@style.in_style
def maps(
    panels: Mapping[str, pd.Series], marked: Mapping[str, Block], reference: Block, *, title: str, caption: str
) -> Figure:
    """One map below the other, a value for each block.

    Args:
        panels: title of a panel -> values, indexed by (k, w). NaN is grey and says nothing.
        marked: title of a panel -> the block with a frame, its best.
        reference: has a dashed frame where it was part of the grid.
    """
    rows = [len(values.index.unique(level="k")) for values in panels.values()]
    height = 1.5 + sum(0.75 + 0.42 * max(2, count) for count in rows)
    figure, axes = style.new_panels(
        title, caption, height, rows=len(panels), height_ratios=[max(2, count) for count in rows]
    )
    for each, (name, values) in zip(axes[:, 0], panels.items(), strict=True):
        grid = values.unstack("w").sort_index()
        _map(each, grid, decimals=3 if grid.max().max() < 0.5 else 2)
        each.set_title(name, fontsize=11, loc="left")
        for block, dash in ((marked.get(name), "-"), (reference, (0, (2, 1.5)))):
            if block is not None and block[0] in grid.index and block[1] in grid.columns:
                _frame(each, grid, block, dash)
        each.set_ylabel("k, rows")
    axes[-1, 0].set_xlabel("w, draft tokens in a row")
    return figure


def _map(axes: Axes, grid: pd.DataFrame, decimals: int) -> None:
    values = np.ma.masked_invalid(grid.to_numpy(dtype=float))
    colours = colormaps["cividis"].with_extremes(bad=style.LIGHT)
    low, high = (float(values.min()), float(values.max())) if values.count() else (0.0, 1.0)
    scale = Normalize(low, high if high > low else low + 1)
    axes.imshow(values, cmap=colours, norm=scale, aspect="auto", origin="lower")
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            if value is not np.ma.masked:
                dark = scale(value) > 0.47
                text = f"{value:.{decimals}f}"
                text = text.removeprefix("0") if decimals == 3 else text
                axes.text(column, row, text, ha="center", va="center", fontsize=9.5,
                          color=style.BLACK if dark else "white")  # fmt: skip
    axes.set_xticks(range(len(grid.columns)), [str(w) for w in grid.columns])
    axes.set_yticks(range(len(grid.index)), [str(k) for k in grid.index])
    axes.grid(visible=False)


def _frame(axes: Axes, grid: pd.DataFrame, block: Block, dash: str | tuple[float, tuple[float, ...]]) -> None:
    column, row = list(grid.columns).index(block[1]), list(grid.index).index(block[0])
    axes.add_patch(
        Rectangle(
            (column - 0.46, row - 0.46), 0.92, 0.92, fill=False, edgecolor=style.ORANGE, linewidth=2.6, linestyle=dash
        )  # fmt: skip
    )


@style.in_style
def predicted_and_live(check: pd.DataFrame, *, title: str, caption: str) -> Figure:
    """Speedup of each block, predicted beside measured.

    check: as from `grid.live_check`.
    """
    figure, axes = style.new_figure(title, caption, height=4.2)
    places = np.arange(len(check))
    axes.axhline(1, color=style.BLACK, linewidth=1.6, linestyle=(0, (1, 1.5)))
    axes.plot(places - 0.08, check["speedup_predicted"], linestyle="none", marker="o", markersize=9, fillstyle="none",
              markeredgewidth=2, color=style.BLUE, label="predicted")  # fmt: skip
    axes.errorbar(places + 0.08, check["speedup_measured"], yerr=check["deviation"].fillna(0.0), linestyle="none",
                  marker="D", color=style.ORANGE, label="live")  # fmt: skip
    axes.set_xticks(places, [f"({row.k}, {row.w})" for row in check.itertuples()])
    axes.set(xlabel="block (k, w)", ylabel="speedup", xlim=(-0.6, len(check) - 0.4), ylim=(0, None))
    style.legend_above(axes, 2)
    return figure
