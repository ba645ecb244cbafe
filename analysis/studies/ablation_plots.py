"""The figures of study `ablation`: distributions by strategy side by side, and each strategy's shares."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ..figures import style

_LOOKS = ((style.BLUE, ""), (style.YELLOW, "//"), (style.GREEN, "xx"), (style.PURPLE, ".."), (style.GREY, "\\\\"))
_MOST = 16  # numbers under the bars


@style.in_style
def distributions(
    by_strategy: Mapping[str, pd.DataFrame], *, xlabel: str, ylabel: str, title: str, caption: str, shift: int = 0
) -> Figure:
    """Bars side by side for each value, with intervals.

    Args:
        by_strategy: as from `ablation.distribution`. shift: added to the values where they are shown.
    """
    figure, axes = style.new_figure(title, caption)
    values = sorted({int(value) for table in by_strategy.values() for value in table["value"]})
    width = 0.8 / max(1, len(by_strategy))
    for index, (name, table) in enumerate(by_strategy.items()):
        table = table.set_index("value").reindex(values)
        colour, hatch = _LOOKS[index % len(_LOOKS)]
        at = np.arange(len(values)) + (index - (len(by_strategy) - 1) / 2) * width
        share = table["share"].fillna(0.0).to_numpy()
        axes.bar(at, share, width, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5, label=name)
        bars = np.stack([share - table["share_low"], table["share_high"] - share])
        axes.errorbar(
            at, share, yerr=np.clip(bars, 0, None), linestyle="none", color=style.BLACK, capsize=2, linewidth=1
        )
    step = -(-len(values) // _MOST)
    axes.set_xticks(range(0, len(values), step), [str(value + shift) for value in values[::step]])
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set(xlabel=xlabel, ylabel=ylabel, ylim=(0, None))
    axes.grid(visible=False, axis="x")
    style.legend_above(axes, min(3, max(1, len(by_strategy))))
    return figure


@style.in_style
def shares(contributions: pd.DataFrame, *, title: str, caption: str) -> Figure:
    """Each strategy's share of all rows, of all accepted rows and of all accepted tokens, with intervals.

    contributions: as from `ablation.contributions`.
    """
    figure, axes = style.new_figure(title, caption)
    groups = (("of_rows", "rows offered"), ("of_wins", "accepted rows"), ("tokens", "accepted tokens"))
    width = 0.8 / len(contributions)
    for index, row in enumerate(contributions.to_dict("records")):
        colour, hatch = _LOOKS[index % len(_LOOKS)]
        at = np.arange(len(groups)) + (index - (len(contributions) - 1) / 2) * width
        value, low, high = (np.array([row[f"{key}{end}"] for key, _ in groups]) for end in ("", "_low", "_high"))
        axes.bar(at, value, width, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5, label=row["strategy"])
        bars = np.clip(np.stack([value - low, high - value]), 0, None)
        axes.errorbar(at, value, yerr=bars, linestyle="none", color=style.BLACK, capsize=3, linewidth=1)
    axes.set_xticks(range(len(groups)), [label for _, label in groups])
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set(ylabel="share by strategy", ylim=(0, 1))
    axes.grid(visible=False, axis="x")
    style.legend_above(axes, min(3, len(contributions)))
    return figure
