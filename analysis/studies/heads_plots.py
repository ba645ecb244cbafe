"""Pictures of heads: accuracy over training and by position, and what variants change."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from ..figures import style
from ..intervals import Interval

_HEADS = (  # of the first head, the second, ...
    (style.BLUE, "o", "-"),
    (style.ORANGE, "D", "--"),
    (style.GREEN, "^", "-."),
    (style.PURPLE, "v", (0, (5, 1, 1, 1, 1, 1))),
    (style.GREY, "s", (0, (1, 1))),
)


@style.in_style
def over_training(histories: Mapping[str, pd.DataFrame], names: Mapping[str, str], *, title: str) -> Figure:
    """Top-1 accuracy of each head over the tokens of training, a panel for each history; dotted: the target's own.

    Args:
        histories: of `heads_training.load_history`.
        names: what a panel is called, if not as its key.
    """
    caption = (
        "Shares of held-out text, given the true tokens before; no intervals. Dotted: the target's own next token."
    )
    figure, panels = style.new_panels(title, caption, 4.4, 1, len(histories), sharey=True)
    for axes, (name, history) in zip(panels[0], histories.items(), strict=True):
        axes.set_title(f"{names.get(name, name)} heads", fontsize=12)
        for head, column in enumerate(column for column in history if column.startswith("head_")):
            colour, marker, dash = _HEADS[head % len(_HEADS)]
            axes.plot(history["tokens"] / 1e6, history[column], color=colour, marker=marker, linestyle=dash,
                      markersize=5, label=f"head {head + 1}")  # fmt: skip
        axes.plot(history["tokens"] / 1e6, history["target"], color=style.BLACK, linestyle=":", linewidth=1.6)
        axes.set(xlabel="million tokens")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    panels[0][0].set_ylabel("top-1 accuracy")
    panels[0][-1].legend(loc="upper right", ncols=2, fontsize=9, bbox_to_anchor=(1.0, 0.92))
    return figure


@style.in_style
def by_head(lines: Mapping[str, Sequence[Interval]], *, title: str, caption: str) -> Figure:
    """Accuracy over the number of the head, a line with intervals for each kind of heads."""
    figure, axes = style.new_figure(title, caption)
    for place, (name, intervals) in enumerate(lines.items()):
        colour, marker, dash = _HEADS[place % len(_HEADS)]
        heads = np.arange(1, len(intervals) + 1)
        axes.errorbar(heads, [each.estimate for each in intervals], yerr=_bars(intervals), color=colour, marker=marker,
                      linestyle=dash, elinewidth=1.3, capsize=2.5, label=name)  # fmt: skip
        axes.set_xticks(heads)
    axes.set(xlabel="head k, which predicts the token but k after the last evaluated", ylabel="top-1 accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_ylim(bottom=0)
    style.legend_above(axes, 2)
    return figure


@style.in_style
def differences(names: Sequence[str], intervals: Sequence[Interval], *, title: str, caption: str) -> Figure:
    """A dot with its interval for each variant, best on top. Filled: apart from 0."""
    figure, axes = style.new_figure(title, caption, height=2.2 + 0.36 * len(names))
    for row, interval in enumerate(intervals):
        if np.isfinite(interval.low):
            axes.hlines(row, interval.low, interval.high, color=style.BLUE, linewidth=2.2, zorder=2)
        apart = interval.low > 0 or interval.high < 0
        axes.plot(interval.estimate, row, "o", color=style.BLUE, markerfacecolor=style.BLUE if apart else "white",
                  markersize=8, zorder=3)  # fmt: skip
    axes.axvline(0, color=style.BLACK, linewidth=1.6, linestyle=(0, (1, 1.5)), zorder=1)
    axes.set(xlabel="tokens per round beyond grounded heads", ylim=(len(names) - 0.5, -0.5))
    axes.set_yticks(range(len(names)), list(names))
    axes.grid(axis="y", visible=False)
    return figure


@style.in_style
def over_count(counts: Sequence[int], intervals: Sequence[Interval], *, title: str, caption: str) -> Figure:
    """Tokens per round over the number of heads in use."""
    figure, axes = style.new_figure(title, caption)
    axes.errorbar(counts, [each.estimate for each in intervals], yerr=_bars(intervals), color=style.BLUE, marker="o",
                  elinewidth=1.3, capsize=2.5)  # fmt: skip
    axes.set(xlabel="heads in use, and depth of the tree", ylabel="tokens per round")
    axes.set_xticks(list(counts))
    return figure


def _bars(intervals: Sequence[Interval]) -> np.ndarray:
    """[2, N] lengths below and above; a percentile interval need not contain the estimate."""
    ends = [(each.estimate - each.low, each.high - each.estimate) for each in intervals]
    return np.nan_to_num(np.array(ends).T.clip(min=0.0))
