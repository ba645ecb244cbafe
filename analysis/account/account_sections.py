"""The gap account in words, tables and a picture: which factor is responsible, and how sure that is."""

from collections.abc import Sequence
from math import inf, isnan, nan

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from ..figures import pictures, style
from ..intervals import LEVEL, Interval, too_few
from ..read.runs import Run
from ..sections import Section, counted
from .gap_account import EXACT, TIMED, Account
from .run_account import account_sums
from .verdicts import explained, formula_verdict, losses, time_split, verdict

SHOWN_PROMPTS = 5  # of the slowest, and of the fastest
# Ticks within a decade, for an axis whose high end is at most the first number times its low end.
_TICKS = ((5, (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)), (30, (1, 2, 3, 5)), (300, (1, 2, 5)), (inf, (1,)))


def factor_table(account: Account, simulated: bool = False) -> pd.DataFrame:
    """Return a line per factor in order, and one for what was measured: words, value, product so far, and effect.
    The last line is the speedup, or without seconds tokens per round.
    """
    lines, product = [], 1.0
    for factor, value in account.factors.items():
        product *= value
        words, interval = account.named(factor), account.intervals[factor]
        if factor == "omega":
            effect = "promise"
        elif abs(value - 1) <= EXACT:
            effect = "none"
        else:
            direction = "costs" if value < 1 else "gains"
            unsure = {None: f"{direction} (no interval)", True: "not significant", False: direction}
            effect = unsure[interval.contains(1.0)]
        if account.doubt and factor in TIMED:
            effect = "not known: the machine was busy"
        lines.append((factor, words.name, words.symbol, interval, product, effect))
    last = ("tokens per round", "measured", "product", account.intervals["tokens_per_round"])
    if not isnan(account.t1_s):
        clock = "simulated by a cost model" if simulated else "measured, wall clock"
        last = ("speedup", clock, "product", account.intervals["speedup"])
    lines.append((*last, product, ""))
    return pd.DataFrame(lines, columns=["factor", "meaning", "formula", "value", "product", "effect"])


def time_table(account: Account) -> pd.DataFrame:
    """Return the parts of a round (verify, draft and the rest) in t(1) and in milliseconds, with their shares."""
    over = [*(account.intervals[term] for term in "vgo"), Interval(sum(account.time.values()))]
    names = {"part": ["verify", "draft", "rest", "round"], "term": ["v", "g", "o", "v + g + o"]}
    times = np.array([each.estimate for each in over])
    return pd.DataFrame({**names, "over t(1)": over, "ms": 1e3 * times * account.t1_s, "share": times / times[-1]})


def group_table(groups: Sequence[Account], by: str) -> pd.DataFrame:
    """Return a line per group: prompts, alpha, factors, speedup with its interval, and which of `causes` costs most."""
    return pd.DataFrame(
        {
            by: group.group,
            "prompts": group.prompts,
            "alpha": group.alpha if group.own_alpha else nan,
            **group.factors,
            "speedup": group.intervals["speedup"],
            "costs most": losses(group)[0] or "none",
        }
        for group in groups
    )


def without_alpha(groups: Sequence[Account], by: str) -> tuple[str, ...]:
    """Name the groups whose texts gave no alpha, in a sentence; empty where all gave one."""
    names = [group.group for group in groups if not group.own_alpha]
    if not names:
        return ()
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return (
        f"No proposal was ever tested for {len(names)} of {len(groups)} ({shown}): alpha cannot be estimated for such "
        f"a {by}, its account is under the run's alpha, and `offered` carries what was not proposed.",
    )


def account_sections(run: Run) -> list[Section]:
    """Return the account of the primary gamma, by category where there are several, and the worst and best prompts.
    UsageError as of `account_sums`.
    """
    sums = account_sums(run)
    account = sums.account()
    sections = [account_section(account, run)]
    groups = sums.by("category")
    if len(groups) > 1:
        worst, *_, best = sorted(groups, key=lambda group: group.speedup)
        paying = sum(group.speedup > 1 for group in groups)
        sentence = (
            f"The speedup is above 1 in {paying} of {len(groups)} categories: from "
            f"{explained(worst.intervals['speedup'])} in {worst.group} to "
            f"{explained(best.intervals['speedup'])} in {best.group}."
        )
        caption = "The account of each category, under its own alpha; intervals of the speedup over its prompts"
        table = group_table(groups, "category")
        text = (sentence, *without_alpha(groups, "category"))
        sections.append(Section("The account by category", text, ((caption, table),)))
    if account.prompts > 1:
        groups = sums.by("prompt")
        speedups = np.array([group.speedup for group in groups])
        shown = min(SHOWN_PROMPTS, len(groups) // 2)
        order = [groups[place] for place in np.argsort(speedups, kind="stable")]
        sentence = (
            f"{(speedups < 1).sum()} of {len(groups)} prompts are slower with the drafter than without; the speedup of "
            f"a prompt goes from {speedups.min():.3f} to {speedups.max():.3f}, median {np.median(speedups):.3f} (a "
            "single prompt has no interval)."
        )
        caption = f"The {shown} {{}} prompts, each under its own alpha"
        tables = tuple(
            (caption.format(which), group_table(part, "prompt").drop(columns="prompts"))  # 1 for a single prompt
            for which, part in (("slowest", order[:shown]), ("fastest", order[::-1][:shown]))
        )
        sections.append(Section("Worst and best prompts", (sentence, *without_alpha(groups, "prompt")), tables))
    return sections


def account_section(account: Account, run: Run) -> Section:
    """Explain one account of a run: the factors and the time of a round, in words, tables and a waterfall."""
    simulated, noise = run.simulated, run.metrics.get("null/floor", 0.0)
    text = [formula_verdict(account), verdict(account, simulated, noise, bool(run.refuted)), time_split(account)]
    if few := too_few(account.prompts):
        text.append(f"No intervals and no word on significance: {few}.")
    if "machine" in account.intervals:
        machine = account.intervals["machine"]
        text.append(
            f"By the clock the speedup is {account.speedup * machine.estimate:.3f}: a factor `machine` of "
            f"{machine:.3f} is what other work did to it, and is in no factor below."
        )
    clock = "cost model's clock" if simulated else "wall clock"
    largest, surest = losses(account)
    if account.doubt:
        most = "not told apart from a busy machine"
    elif surest:
        most = "costs most" if surest == largest else "is the largest significant loss"
        most = f"besides drafting, {account.named(surest).name} {most}, ×{account.value(surest):.2f}"
    else:
        most = f"besides drafting, {'no loss is significant' if largest else 'nothing is lost'}"
    headline = f"From {account.factors['omega']:.2f} tokens per round to a speedup of {account.speedup:.2f}: {most}"
    caption = f"Factors from the capped geometric to the {clock}; their product is the speedup"
    by_time = ("A round's time, whatever the order of factors", time_table(account))
    figure = waterfall(account, title=f"{headline}\n{run.title}", simulated=simulated)
    tables = ((caption, factor_table(account, simulated)), by_time)
    return Section("The gap, explained", tuple(text), tables, (("account", figure),))


@style.in_style
def waterfall(account: Account, *, title: str, simulated: bool = False) -> Figure:
    """Draw a bar per factor, top to bottom, from the product so far to the next one, on a log axis; paler where the
    interval contains 1. The first bar is the promise, the last the measurement; both begin at 1, the break-even.
    simulated: times come from a cost model, and the last bar says so.
    """
    rows = [f"{words.name}\n{words.symbol}" for words in map(account.named, account.factors)]
    rows.append("simulated speedup\ncost model" if simulated else "measured speedup\nwall clock")
    figure, axes = style.new_figure(title, _caption(account), height=2.0 + 0.46 * len(rows))
    start, limits = 1.0, [1.0]
    for place, name in enumerate((*account.factors, "speedup")):
        interval, last = account.intervals[name], name == "speedup"
        value = interval.estimate
        start = 1.0 if last else start
        end = start * value
        neutral = last or name == "omega" or abs(value - 1) <= EXACT
        colour = style.BLACK if last else style.GREY if neutral else style.BLUE if value > 1 else style.ORANGE
        sure = neutral or interval.contains(1.0) is not True
        # The edge shows a bar that has no width.
        axes.barh(place, end - start, left=start, height=0.62, color=colour, edgecolor=colour, linewidth=1.5,
                  alpha=1.0 if sure else 0.45)  # fmt: skip
        limits += [start, end]
        if interval.known and interval.low != interval.high:
            bounds = [start * interval.low, start * interval.high]
            limits += bounds
            for ink, size, width, above in (("white", 9, 3.6, 3), (style.BLACK, 8, 1.2, 3.1)):
                axes.plot(bounds, [place] * 2, "|-", color=ink, markersize=size, markeredgewidth=width,
                          linewidth=width, zorder=above)  # fmt: skip
        style.tip(axes.patches[-1], f"{name if last else account.named(name).name}: {interval:.3f}")
        # The values stand in a column at the right end, where no bar can hide them.
        axes.annotate(f"{value:.2f}" if last or name == "omega" else f"×{value:.3f}", (1.01, place),
                      xycoords=axes.get_yaxis_transform(), ha="left", va="center", fontsize=11,
                      fontweight="bold" if last else "normal", annotation_clip=False)  # fmt: skip
        if not last:
            axes.plot([end, end], [place + 0.34, place + 0.66], color=style.BLACK, linewidth=1.0)
            start = end
    axes.axvline(1, color=style.BLACK, linewidth=1.6, linestyle=":", zorder=0.9)
    axes.annotate("breaks even", (1, 1), xycoords=axes.get_xaxis_transform(), ha="center", va="bottom", fontsize=10)
    pictures.named_rows(axes, rows)
    axes.tick_params(axis="y", length=0, labelsize=10.5)
    axes.set_ylim(len(rows) - 0.45, -0.55)
    low, high = min(limits), max(limits)
    margin = max((high / low) ** 0.06, 1.02)  # some width even if all is 1
    digits = next(digits for span, digits in _TICKS if high / low <= span)
    ticks = [digit * 10.0**power for power in range(-9, 9) for digit in digits]
    ticks = [tick for tick in ticks if low / margin <= tick <= high * margin]
    pictures.log_axis(axes, ticks, "product of the factors so far (log scale)", base=10)
    axes.set_xlim(low / margin, high * margin)
    return figure


def _caption(account: Account) -> str:
    drawn = [account.intervals[name] for name in (*account.factors, "speedup")]
    sure = "no intervals"
    if any(interval.known for interval in drawn):
        which = "of each factor" if account.intervals["speedup"].known else "of factors that are no times"
        sure = f"whiskers: {LEVEL:.0%} prompt-bootstrap intervals {which}; pale: the interval contains 1"
    prompts = counted(account.prompts, "prompt")
    g, v, o = (account.time[name] for name in ("g", "v", "o"))
    return (
        f"{prompts}, γ\u00a0=\u00a0{account.gamma}, α\u00a0=\u00a0{account.alpha:.3f}; {sure}. "
        "Left costs, right gains; dotted: breaks even. What costs most is named without drafting, which the capped "
        "geometric's speedup counts, and with the loop's and the baseline's own time as one factor. "
        "A round takes v + g + o = "
        f"{v:.2f} + {g:.2f} + {o:.2f} = {v + g + o:.2f} t(1) (verify, draft, rest)."
    )
