"""Draws the account: from what the capped geometric promises, factor by factor, to the speedup that was measured."""

from math import inf

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ..figures import style
from ..intervals import Interval
from ..sections import counted
from .gap_account import EXACT, Account

# Ticks within a decade, for an axis whose high end is at most the first number times its low end.
_TICKS = ((5, (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)), (30, (1, 2, 3, 5)), (300, (1, 2, 5)), (inf, (1,)))


@style.in_style
def waterfall(account: Account, *, title: str, simulated: bool = False) -> Figure:
    """Draw a bar per factor, top to bottom, from the product so far to the next one, on a log axis.

    Factors above 1 go right, below 1 left; paler where the interval contains 1. The first bar is the promise, the last
    the measurement; both begin at 1, where speculation breaks even.

    simulated: times come from a cost model, and the last bar says so.
    """
    count = len(account.factors) + 1
    figure, axes = style.new_figure(title, _caption(account), height=2.0 + 0.46 * count)
    start, limits = 1.0, [1.0]
    for place, (factor, value) in enumerate(account.factors.items()):
        end = start * value
        neutral = factor == "omega" or abs(value - 1) <= EXACT
        colour = style.GREY if neutral else style.BLUE if value > 1 else style.ORANGE
        sure = neutral or account.intervals[factor].contains(1.0) is not True
        value_in_words = f"{account.named(factor).name}: {account.intervals[factor]:.3f}"
        limits += _bar(axes, place, start, end, account.intervals[factor], colour, 1.0 if sure else 0.45)
        style.tip(axes.patches[-1], value_in_words)
        _label(axes, place, f"{value:.2f}" if factor == "omega" else f"×{value:.3f}")
        axes.plot([end, end], [place + 0.34, place + 0.66], color=style.BLACK, linewidth=1.0)
        start = end
    limits += _bar(axes, count - 1, 1.0, account.speedup, account.intervals["speedup"], style.BLACK, 1.0)
    style.tip(axes.patches[-1], f"speedup: {account.intervals['speedup']:.3f}")
    _label(axes, count - 1, f"{account.speedup:.2f}", weight="bold")
    axes.axvline(1, color=style.BLACK, linewidth=1.6, linestyle=":", zorder=0.9)
    axes.annotate("breaks even", (1, 1), xycoords=axes.get_xaxis_transform(), ha="center", va="bottom", fontsize=10)

    labels = [account.named(factor) for factor in account.factors]
    last = "simulated speedup\ncost model" if simulated else "measured speedup\nwall clock"
    axes.set_yticks(range(count), [*(f"{item.name}\n{item.symbol}" for item in labels), last])
    axes.tick_params(axis="y", length=0, labelsize=10.5)
    axes.set_ylim(count - 0.45, -0.55)
    axes.grid(axis="y", visible=False)
    axes.set_xscale("log")
    low, high = min(limits), max(limits)
    margin = max((high / low) ** 0.06, 1.02)  # some width even if all is 1
    axes.set_xlim(low / margin, high * margin)
    digits = next(digits for span, digits in _TICKS if high / low <= span)
    ticks = [digit * 10.0**power for power in range(-9, 9) for digit in digits]
    ticks = [tick for tick in ticks if low / margin <= tick <= high * margin]
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:g}"))
    axes.set_xlabel("product of the factors so far (log scale)")
    return figure


def _bar(
    axes: Axes, place: int, start: float, end: float, interval: Interval, colour: str, strength: float
) -> list[float]:
    """Draw one bar with its whisker; return the ends of both."""
    # The edge shows a bar that has no width.
    axes.barh(
        place, end - start, left=start, height=0.62, color=colour, edgecolor=colour, linewidth=1.5, alpha=strength
    )
    if not interval.known or interval.low == interval.high:
        return [start, end]
    bounds = [start * interval.low, start * interval.high]
    axes.plot(bounds, [place] * 2, "|-", color="white", markersize=9, markeredgewidth=3.6, linewidth=3.6, zorder=3)
    axes.plot(
        bounds, [place] * 2, "|-", color=style.BLACK, markersize=8, markeredgewidth=1.2, linewidth=1.2, zorder=3.1
    )
    return [start, end, *bounds]


def _label(axes: Axes, place: int, text: str, weight: str = "normal") -> None:
    """Write the value in a column at the right end, where no bar can hide it."""
    axes.annotate(text, (1.01, place), xycoords=axes.get_yaxis_transform(), ha="left", va="center", fontsize=11,
                  fontweight=weight, annotation_clip=False)  # fmt: skip


def _caption(account: Account) -> str:
    drawn = [account.intervals[name] for name in (*account.factors, "speedup")]
    known = [interval for interval in drawn if interval.known]
    sure = "no intervals"
    if known:
        which = "of each factor" if account.intervals["speedup"].known else "of factors that are no times"
        sure = f"whiskers: {known[0].level:.0%} prompt-bootstrap intervals {which}; pale: the interval contains 1"
    prompts = counted(account.prompts, "prompt")
    g, v, o = (account.time[name] for name in ("g", "v", "o"))
    return (
        f"{prompts}, γ\u00a0=\u00a0{account.gamma}, α\u00a0=\u00a0{account.alpha:.3f}; {sure}. "
        "Left costs, right gains; dotted: breaks even. What costs most is named without drafting, which the capped "
        "geometric's speedup counts, and with the loop's and the baseline's own time as one factor. "
        "A round takes v + g + o = "
        f"{v:.2f} + {g:.2f} + {o:.2f} = {v + g + o:.2f} t(1) (verify, draft, rest)."
    )
