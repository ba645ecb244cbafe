"""The figures of the capped-geometric model: best gamma, speedup and operations, and what an oracle for gamma could add
(Leviathan et al. 2211.17192, Figures 3 and 4, and section 3.5). With a `Standing` they show where a run stands.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import e, isfinite, nan

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specdec.theory import capped_geometric as model

from ..intervals import Interval
from . import pictures, style

COSTS = (0.01, 0.02, 0.05, 0.1, 0.2)  # c of the lines
GAMMAS = (1, 3, 5, 7, 10)
ALPHAS = np.linspace(0.0, 0.99, 199)
ALPHA = "α, chance that a draft token is accepted"
FREE = "Theory; no measurement."
ORACLE_LIMIT = e / (e - 1)
MOST = 50  # gammas on an axis; a best one beyond is marked at its end
LONGEST = 2000  # gamma that is tried: more than the best one, unless a drafter is free or always right


@dataclass(frozen=True)
class Standing:
    """The place of a run in the theory."""

    alpha: float  # that of the run's capped geometric, as c
    gamma: int  # its primary one
    c: float
    c_ops: float = 0.0  # operations of a drafted token over those of the target; 0 for drafters that look tokens up
    speedup: Interval = Interval(nan)  # as measured
    operations: float = nan  # per token over plain decoding's, as evaluated; NaN for a target that does no arithmetic

    @property
    def best(self) -> model.OptimalGamma:
        """The best fixed gamma by the capped geometric at this alpha and c, `LONGEST` at most."""
        return model.optimal_gamma(self.alpha, self.c, max_gamma=LONGEST)

    @property
    def expected(self) -> float:
        """The speedup that the capped geometric gives at this gamma."""
        return float(model.speedup(self.alpha, self.gamma, self.c))


def standing_in_words(here: Standing) -> tuple[str, str]:
    """Say what the capped geometric makes of the run's gamma, and what varying gamma could add at most."""
    best = here.best
    choice = f"At α {here.alpha:.3f} and c {here.c:.3g} the capped geometric gives a speedup of {here.expected:.3f} "
    choice += f"for γ {here.gamma}"
    if best.gamma == 0:
        choice += ", and no γ pays, because α is not above c: a faster drafter or one that agrees more is what helps."
    elif here.c == 0:
        choice += " and more for every longer draft: drafts cost nothing, and 1 / (1 - α) is the limit."
    elif best.gamma == here.gamma:
        choice += ", its best γ."
    else:
        gain = best.speedup / here.expected - 1
        choice += f" and of {best.speedup:.3f} for γ {best.gamma}, its best: {gain:+.1%}."
    oracle = float(model.oracle_speedup(here.alpha, here.c))
    more = (
        f"An oracle that drafts in each round just what will be accepted would reach {oracle:.3f}, "
        f"{model.oracle_gain(here.alpha, here.c, LONGEST) - 1:+.1%} over the best fixed γ: the most that any choice of "
        "γ by round can add."
    )
    return choice, more


@style.in_style
def best_gamma(here: Standing | None = None) -> Figure:
    """Draw the best gamma over alpha, a line for each c (2211.17192, Figure 3); the run's own c and place if given."""
    caption = f"The γ that maximises (1 - α^(γ+1)) / ((1 - α)(1 + γc)); 0 where no draft pays. {FREE}"
    seen = "The more is accepted and the less a draft costs, the longer the best draft"
    if here is not None:
        best = here.best.gamma
        own = f"the capped geometric's best γ is {f'{MOST} or more' if best >= MOST else best}"
        own = own if best else "no draft pays"
        seen = f"At α {here.alpha:.2f} and c {here.c:.2g} {own}; this run drafts {here.gamma}"
    figure, axes = style.new_figure(seen, _caption(caption, here))
    top = 20 if here is None else max(20, here.gamma + 3, min(best + 3, MOST))
    _lines_over_costs(axes, lambda alpha, c: model.optimal_gamma(alpha, c).gamma, top, here)
    if here is not None:
        if here.c > 0:  # else every longer draft is better
            _ring(axes, here, min(best, top), f"the capped geometric's best: γ = {best}")
        _dot(axes, here, here.gamma, f"its own: γ = {here.gamma}")
    axes.set(xlabel=ALPHA, ylabel="best γ", xlim=(0, 1), ylim=(0, top))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    style.legend_above(axes, 3)
    return figure


@style.in_style
def speedup_and_operations(here: Standing | None = None) -> Figure:
    """Draw speedup and operations over alpha, a line for each gamma (2211.17192, Figure 4). The drafter is free, as in
    the paper, or it costs what the run's own does.
    """
    c, c_ops = (0.0, 0.0) if here is None else (here.c, here.c_ops)
    gammas = sorted({*GAMMAS, *(() if here is None else (here.gamma,))})
    costs = f"c = {c:.3g} in time and {c_ops:.3g} in operations" if here else "A drafter that costs nothing"
    caption = f"{costs}; over plain decoding." + (f" {FREE}" if here is None else "")
    seen = "Longer drafts are faster, and waste more operations"
    if here is not None:
        measured = f", {here.speedup.estimate:.2f} measured" if isfinite(here.speedup.estimate) else ""
        seen = f"Speedup at γ {here.gamma}: {here.expected:.2f} by the capped geometric{measured}"
        seen += f"; operations ×{here.operations:.2f}" if isfinite(here.operations) else ""
    figure, panels = style.new_panels(seen, _caption(caption, here), 7.2, 2, sharex=True)
    above, below = panels[:, 0]
    fast = {gamma: np.asarray(model.speedup(ALPHAS, gamma, c)) for gamma in gammas}
    much = {gamma: np.asarray(model.operations(ALPHAS, gamma, c_ops)) for gamma in gammas}
    for axes, lines in ((above, fast), (below, much)):
        for gamma, colour in zip(gammas, pictures.shades(len(gammas)), strict=True):
            own = here is not None and gamma == here.gamma
            axes.plot(ALPHAS, lines[gamma], color=style.BLACK if own else colour, label=f"γ = {gamma}",
                      linewidth=3.2 if own else 1.8)  # fmt: skip
        pictures.level(axes, 1.0)
        axes.set(xlim=(0, 1))
    highest = max(float(line.max()) for line in fast.values())
    if here is not None:
        ends = (here.speedup.estimate, here.speedup.high, here.expected)
        highest = max(highest, *(each for each in ends if isfinite(each)))
        much_here = float(model.operations(here.alpha, here.gamma, c_ops))
        for axes, expected in ((above, here.expected), (below, much_here)):
            _ring(axes, here, expected, f"capped geometric: {expected:.2f}")
        if isfinite(here.speedup.estimate):
            _dot(above, here, here.speedup.estimate, f"measured: {here.speedup.estimate:.2f}", here.speedup)
        if isfinite(here.operations):
            _dot(below, here, here.operations, f"evaluated: {here.operations:.2f}")
    above.set(ylabel="speedup", ylim=(0, min(8.0, 1.08 * highest)))
    below.set(xlabel=ALPHA, ylabel="operations", ylim=(0, 8))
    style.legend_above(above, 3 if here is None else 4)
    if here is not None:
        marks = [(mark, words) for mark, words in zip(*below.get_legend_handles_labels(), strict=True) if ":" in words]
        below.legend(*zip(*marks, strict=True), loc="upper right")
    return figure


@style.in_style
def oracle_bound(here: Standing | None = None) -> Figure:
    """Draw the speedup with an oracle for gamma over that of the best fixed gamma, a line for each c (section 3.5)."""
    caption = (
        "An oracle drafts in each round just what will be accepted: 1 / (1 - α + cα), over the best fixed γ. "
        f"The dotted line, e / (e - 1), is the most for any α and c. {FREE}"
    )
    seen = f"Varying γ by round could add {ORACLE_LIMIT - 1:.0%} at most, whatever α and c"
    if here is not None:
        gain = model.oracle_gain(here.alpha, here.c, LONGEST)
        seen = f"Varying γ by round could add {gain - 1:.0%} at most"
    figure, axes = style.new_figure(seen, _caption(caption, here))
    _lines_over_costs(axes, lambda alpha, c: model.oracle_gain(alpha, c, LONGEST), ORACLE_LIMIT, here)
    pictures.level(axes, ORACLE_LIMIT)
    axes.annotate(f"at most {ORACLE_LIMIT:.2f}", (0.01, ORACLE_LIMIT), xytext=(2, 4), textcoords="offset points")
    if here is not None:
        _dot(axes, here, gain, f"this run: {gain:.2f}")
    axes.set(xlabel=ALPHA, ylabel="oracle over best fixed γ", xlim=(0, 1), ylim=(0.98, 1.68))
    style.legend_above(axes, 3)
    return figure


def _caption(words: str, here: Standing | None) -> str:
    """Return the words, and what is marked if a run is."""
    if here is None:
        return words
    place = f"α\u00a0=\u00a0{here.alpha:.3f}, c\u00a0=\u00a0{here.c:.3g}, γ\u00a0=\u00a0{here.gamma}"
    return f"{words} Marked: this run, {place}."


def _lines_over_costs(axes: Axes, value: Callable[[float, float], float], top: float, here: Standing | None) -> None:
    """Draw `value(alpha, c)` over alpha for each c, and in black for the run's own; nothing above `top` is drawn."""

    def shown(c: float) -> np.ndarray:
        return pictures.below_cut(np.array([value(alpha, c) for alpha in ALPHAS.tolist()], dtype=float), top)

    for c, colour, look in zip(COSTS, pictures.shades(len(COSTS)), style.LOOKS, strict=True):
        axes.plot(ALPHAS, shown(c), color=colour, linestyle=look.dash, label=f"c = {c:g}")
    if here is not None:
        axes.plot(ALPHAS, shown(here.c), color=style.BLACK, linewidth=3.2, label=f"c = {here.c:.3g}, its own")


def _dot(axes: Axes, here: Standing, up: float, words: str, interval: Interval | None = None) -> None:
    """Mark the run itself: a filled point, with its interval."""
    spread = None if interval is None else pictures.whiskers([interval])
    axes.errorbar([here.alpha], [up], yerr=spread, fmt="o", color=style.ORANGE, markersize=10, zorder=6, label=words)


def _ring(axes: Axes, here: Standing, up: float, words: str) -> None:
    """Mark what the capped geometric gives at the run's alpha and c: a ring."""
    axes.plot(here.alpha, up, "o", color=style.ORANGE, markerfacecolor="white", markersize=14, linestyle="none",
              markeredgewidth=2, zorder=5, label=words)  # fmt: skip
