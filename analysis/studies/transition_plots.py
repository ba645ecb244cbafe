"""The figures of study `phase_transition`: slow-down by block, and by tokens evaluated above operations per byte."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from ..figures import style
from .transition import Growth

LEVELS = (1.1, 1.5, 2, 4, 8, 16, 32)
_LINES = ((style.BLUE, "o"), (style.ORANGE, "D"), (style.GREEN, "^"), (style.PURPLE, "v"), (style.GREY, "s"))
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


@style.in_style
def heat_maps(cells: pd.DataFrame, *, title: str, caption: str) -> Figure:
    """Slow-down by w and k, a map for each context, all in the same colours; cells without a value are grey.

    cells: as from `transition.slowdowns`.
    """
    contexts = sorted(int(context) for context in cells["context"].unique())
    columns = min(2, len(contexts))
    lines = -(-len(contexts) // columns)
    figure, panels = style.new_panels(title, caption, 1.6 + 3.1 * lines, lines, columns, sharex=True, sharey=True)
    top = max(2.0, float(cells["slowdown"].max()))
    colours = colormaps["cividis"].with_extremes(bad=style.LIGHT)
    mesh = None
    for panel, context in zip(panels.flat, contexts, strict=False):
        grid = _grid(cells[cells["context"] == context])
        # Below 1 is the plain step alone: the scale begins at the unit.
        values = np.ma.masked_invalid(grid.to_numpy())
        mesh = panel.imshow(values, cmap=colours, norm=LogNorm(1, top), aspect="auto", origin="lower")
        _contours(panel, grid)
        panel.set_title(f"{context:,} tokens in the cache", fontsize=11)
        panel.grid(visible=False)
        for axis, values in ((panel.xaxis, grid.columns), (panel.yaxis, grid.index)):
            shown = _shown(len(values))
            axis.set_major_locator(FixedLocator(shown))
            axis.set_major_formatter(FuncFormatter(lambda at, _, values=tuple(values): f"{values[int(at)]}"))
    for panel in panels.flat[len(contexts) :]:
        panel.set_axis_off()
    for panel in panels[:, 0]:
        panel.set_ylabel("k, rows")
    for panel in panels[-1]:
        panel.set_xlabel("w, draft tokens in a row")
    assert mesh is not None
    bar = figure.colorbar(mesh, ax=panels, shrink=0.9, pad=0.02)
    ticks = [level for level in (1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64) if level <= top]
    bar.ax.yaxis.set_major_locator(FixedLocator(ticks))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.set_label("t(k, w) / t(1, 1)")
    return figure


def _grid(cells: pd.DataFrame) -> pd.DataFrame:
    """Slow-down, k down and w across. The plain step stands for width 0 at every k: the calls are the same."""
    grid = cells.pivot(index="k", columns="w", values="slowdown")
    if 0 in grid:
        grid[0] = grid[0].fillna(grid[0].iloc[0])
    return grid


def _shown(count: int) -> list[int]:
    """Which of so many places have a number: all, or some at even distances."""
    step = -(-count // 9)
    return list(range(0, count, step))


def _contours(panel: Axes, grid: pd.DataFrame) -> None:
    """Lines of equal slow-down, where they are reached."""
    values = grid.to_numpy()
    levels = [level for level in LEVELS if np.nanmin(values) < level < np.nanmax(values)]
    if min(values.shape) < 3 or not levels:
        return
    lines = panel.contour(values, levels=levels, colors="white", linewidths=1.3)
    panel.clabel(lines, fmt=lambda level: f"{level:g}", fontsize=10)


@style.in_style
def transition(
    grown: Mapping[int, Growth],
    products: pd.DataFrame,
    *,
    title: str,
    caption: str,
    largest: int | None = None,
) -> Figure:
    """Slow-down over tokens evaluated, points and a line that never falls for each context, and below, over the same
    tokens, operations per byte of the products with the machine's threshold.

    products: as from `transition.product_lines`; without rows the lower part is left out. largest: tokens shown.
    """
    both = len(products) > 0
    if both:
        figure, panels = style.new_panels(title, caption, 8.2, rows=2, sharex=True, height_ratios=(1.15, 1))
        upper, lower = panels[:, 0]
    else:
        figure, upper = style.new_figure(title, caption)
        lower = None
    end = largest or max(growth.largest for growth in grown.values())
    for index, (cached, growth) in enumerate(grown.items()):
        colour, marker = _LINES[index % len(_LINES)]
        shown = growth.tokens <= end
        upper.plot(
            growth.tokens[shown],
            growth.slowdown[shown],
            color=colour,
            marker=marker,
            markersize=4 if shown.sum() <= 80 else 2.5,
            linestyle="none",
            label=f"{cached:,} cached",
        )
        upper.plot(growth.tokens[shown], growth.fitted[shown], color=colour, linewidth=1.2)
    upper.axhline(1, color=style.BLACK, linewidth=1.3, linestyle=":")
    upper.set(ylabel="t / t(1, 1)", ylim=(0, None))
    style.legend_above(upper, len(grown) if len(grown) <= 3 else 2)
    bottom = upper
    if lower is not None:
        bottom = lower
        _operations(lower, products[products["rows_evaluated"] <= end])
    bottom.set(xlabel="tokens evaluated in the call, root included", xlim=(0, 1.02 * end))
    return figure


def _operations(axes: Axes, products: pd.DataFrame) -> None:
    for index, (names, lines) in enumerate(products.groupby("products", sort=False)):
        colour, _ = _LINES[index % len(_LINES)]
        first, more, _ = str(names).partition(", ")
        label = f"{first}{', …' if more else ''} ({lines['size'].iloc[0]})"
        if (lines["high"] > 1.001 * lines["low"]).any():
            # Each copy of the cache serves the tokens of its own row, so that blocks of one size differ.
            ends = (lines["low"], lines["high"])
            axes.vlines(lines["rows_evaluated"], *ends, color=colour, linewidth=0.8)
            for end, name in zip(ends, (label, None), strict=True):
                axes.plot(lines["rows_evaluated"], end, ".", color=colour, markersize=5, label=name)
            continue
        dash = _DASHES[index % len(_DASHES)]
        axes.plot(lines["rows_evaluated"], lines["high"], color=colour, linestyle=dash, label=label)
    bound = float(products["threshold"].iloc[0])
    label = f"this machine's {bound:.3g}"
    axes.axhline(bound, color=style.BLACK, linewidth=1.6, linestyle=(0, (1, 1.5)), label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("operations per byte")
    style.legend_above(axes, 2)
