"""The few shapes of picture that studies and runs share: lines with intervals, grouped bars, heat maps, dots.

`chart` makes a whole figure of lines; the others draw into axes that `style` made.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator, PercentFormatter

from ..comparisons import intervals
from ..intervals import Interval
from . import style
from .style import Look


def level(axes: Axes, value: float, label: str = "") -> None:
    """Draw a dotted horizontal line that others are compared with, and its name at the right end."""
    axes.axhline(value, color=style.GREY, linewidth=1.6, linestyle=style.DOTTED)
    if label:
        axes.annotate(label, (1, value), xycoords=("axes fraction", "data"), xytext=(-2, 4),
                      textcoords="offset points", ha="right", color=style.GREY)  # fmt: skip


def whiskers(values: Sequence[Interval]) -> np.ndarray:
    """Return error bars [2, N] below and above: 0 without bounds, or where an interval does not hold its estimate."""
    ends = [(each.estimate - each.low, each.high - each.estimate) for each in values]
    return np.nan_to_num(np.reshape(ends, (-1, 2)).T.clip(min=0.0))


def line(
    axes: Axes, across: Sequence[float] | Sequence[Interval], up: Sequence[Interval], look: Look, label: str
) -> None:
    """Draw points with intervals, joined by a line; `across` may have intervals too. A single point has no line."""
    wide = [each for each in across if isinstance(each, Interval)]
    places = [each.estimate for each in wide] or np.asarray(across, dtype=float).tolist()
    beside, above = whiskers(wide) if wide else None, whiskers(up) if any(each.known for each in up) else None
    axes.errorbar(places, [each.estimate for each in up], xerr=beside, yerr=above, color=look.colour,
                  marker=look.marker, linestyle=look.dash if len(up) > 1 else "none", elinewidth=1.3, capsize=2.5,
                  label=label)  # fmt: skip
    for place, value in zip(places, up, strict=True):
        style.point_tip(axes, place, value.estimate, f"{label}, {place:g}: {value:.4g}")


Line = tuple[Sequence[float] | Sequence[Interval], Sequence[Interval], Look]  # of a chart: places across, values up


@dataclass(frozen=True)
class Panel:
    """One pair of axes of a chart."""

    ylabel: str
    lines: Mapping[str, Line]  # by the name in the legend; names that begin with "_" are not in it
    level: tuple[float, str] | None = None  # a dotted horizontal line, and its name
    zero: bool = False  # whether the vertical axis begins at 0
    share: float = 1.0  # of the figure's height, beside the other panels' shares


@style.in_style
def chart(
    *panels: Panel,
    title: str,
    caption: str,
    xlabel: str,
    ticks: Sequence[float] = (),
    base: int = 2,
    columns: int = 3,
    height: float = style.HEIGHT,
) -> Figure:
    """Draw lines with intervals, in panels one below the other that share their horizontal axis. ticks: of a log axis
    across, in powers of `base`; none for a linear one; columns: of the legend, which stands above the first panel.
    """
    shares = [panel.share for panel in panels]
    figure, grid = style.new_panels(title, caption, height, len(panels), sharex=True, height_ratios=shares)
    for axes, panel in zip(grid[:, 0], panels, strict=True):
        if panel.level is not None:
            level(axes, *panel.level)
        for name, (across, up, look) in panel.lines.items():
            line(axes, across, up, look, name)
        if ticks:
            log_axis(axes, ticks, base=base)
        if panel.zero:
            axes.set_ylim(bottom=0)
        axes.set_ylabel(panel.ylabel)
    grid[-1, 0].set_xlabel(xlabel)
    if any(not name.startswith("_") for name in panels[0].lines):
        style.legend_above(grid[0, 0], columns)
    return figure


def over(table: pd.DataFrame, across: str, up: str, look: Look) -> Line:
    """Return a table's column with its bounds over another column."""
    bounded = intervals(table, up) if f"{up}_low" in table else [Interval(value) for value in table[up]]
    return table[across].tolist(), bounded, look


_APART = {"chain": 1.0, "rows": 2**-0.06, "tree": 2**0.06, "dynamic": 2**-0.06}


def structure_lines(cells: pd.DataFrame, name: str) -> dict[str, Line]:
    """Return a column with its bounds over `budget`, a line for each structure (`shape`), in the look that it has in
    all pictures; side by side, because as bands intervals would cover each other.
    """
    parts = {shape: cells[cells["shape"] == shape].sort_values("budget") for shape in _APART}
    return {
        shape: over(part.assign(budget=part["budget"] * _APART[shape]), "budget", name, style.STRUCTURES[shape])
        for shape, part in parts.items()
        if len(part)
    }


def named_rows(axes: Axes, names: Sequence[str]) -> None:
    """Name the rows 0, 1, ... of a figure, the first on top, and draw no lines along them."""
    axes.set_yticks(range(len(names)), list(names))
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)


def below_cut(values: np.ndarray, top: float) -> np.ndarray:
    """Return the values with NaN for those above `top`, so that a line ends there instead of leaving the figure."""
    return np.where(values <= top, values, np.nan)


def shades(number: int, lightest: float = 0.72) -> list[tuple[float, ...]]:
    """Return darker colours of cividis, which are told apart by lightness alone, and legible on white."""
    return [tuple(colour) for colour in colormaps["cividis"](np.linspace(0.0, lightest, number))]


def gamma_ticks(axes: Axes, gammas: Sequence[int]) -> None:
    """Put a tick at each gamma, or at some of very many."""
    axes.set_xticks(gammas if len(gammas) <= 12 else gammas[:: len(gammas) // 12 + 1])


def percent_axis(axes: Axes) -> None:
    """Show the vertical axis in per cent, from 0."""
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_ylim(bottom=0)


def log_axis(axes: Axes, ticks: Sequence[float], label: str = "", base: int = 2) -> None:
    """Make the horizontal axis logarithmic, with a tick for each number."""
    axes.set_xscale("log", base=base)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(label)


def bars(axes: Axes, groups: Mapping[str, Sequence[Interval]]) -> None:
    """Draw bars with intervals side by side at places 0, 1, ...: one colour for each group, and rings if it is used."""
    width = 0.8 / max(1, len(groups))
    for index, (name, values) in enumerate(groups.items()):
        colour, _, _, hatch = style.look(index)
        hatch = (hatch or "") + "oo" * (index // len(style.LOOKS))
        at = np.arange(len(values)) + (index - (len(groups) - 1) / 2) * width
        heights = np.nan_to_num([each.estimate for each in values])
        drawn = axes.bar(at, heights, width, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5, label=name)
        for bar, value in zip(drawn, values, strict=True):
            style.tip(bar, f"{name}: {value:.4g}")
        axes.errorbar(at, heights, yerr=whiskers(values), linestyle="none", color=style.BLACK, capsize=2, linewidth=1)
    axes.grid(visible=False, axis="x")


def heat_map(axes: Axes, grid: pd.DataFrame, scale: Normalize, ticks: int = 30) -> AxesImage:
    """Draw values over w (across) and k (up), at most `ticks` numbers along an axis; what is missing is grey."""
    colours = colormaps["cividis"].with_extremes(bad=style.LIGHT)
    values = np.ma.masked_invalid(grid.to_numpy(dtype=float))
    image = axes.imshow(values, cmap=colours, norm=scale, aspect="auto", origin="lower")
    for axis, names in ((axes.xaxis, grid.columns), (axes.yaxis, grid.index)):
        shown = range(0, len(names), -(-len(names) // ticks))
        axis.set_ticks(list(shown), [str(names[at]) for at in shown])
    axes.grid(visible=False)
    return image


def scale_of(*grids: pd.DataFrame) -> Normalize:
    """Return one scale of colours for all values of some grids."""
    known = np.concatenate([grid.stack().dropna().to_numpy(dtype=float) for grid in grids])
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    return Normalize(low, high if high > low else low + 1)


def frame(axes: Axes, grid: pd.DataFrame, shape: tuple[int, int] | None, dashed: bool = False) -> None:
    """Draw a frame around the cell of a shape (k, w) in a heat map, where the map has it."""
    if shape is not None and shape[0] in grid.index and shape[1] in grid.columns:
        corner = list(grid.columns).index(shape[1]) - 0.46, list(grid.index).index(shape[0]) - 0.46
        axes.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, edgecolor=style.ORANGE, linewidth=2.6,
                                 linestyle=(0, (2, 1.5)) if dashed else "-"))  # fmt: skip


def dots(axes: Axes, names: Sequence[str], values: Sequence[Interval], filled: Sequence[bool], start: float) -> None:
    """Draw a dot with its interval for each name, the first on top, and a dotted line at `start`."""
    for row, (name, value, full) in enumerate(zip(names, values, filled, strict=True)):
        if value.known:
            axes.hlines(row, value.low, value.high, color=style.BLUE, linewidth=2.2, zorder=2)
        face = style.BLUE if full else "white"
        axes.plot(value.estimate, row, "o", color=style.BLUE, markerfacecolor=face, markersize=8, zorder=3)
        style.point_tip(axes, value.estimate, row, f"{name}: {value:.4g}")
    axes.axvline(start, color=style.BLACK, linewidth=1.6, linestyle=style.DOTTED, zorder=1)
    named_rows(axes, names)
    axes.set_ylim(len(names) - 0.5, -0.5)
