"""The gap account in words, tables and a picture: which factor is responsible, and how sure that is (THEORY 8)."""

from collections.abc import Sequence
from math import nan

import numpy as np
import pandas as pd

from ..findings import Section
from ..intervals import Interval
from ..read.runs import Run
from .gap_account import Account
from .run_account import AccountSums, GroupAccount, account_sums
from .waterfall import EXACT, contains_one, waterfall, words_for

SHOWN_PROMPTS = 5  # the worst, and as many of the best

# What a factor is about, where a sentence names it.
_CAUSES = {
    "offered": "fewer tokens offered than gamma",
    "dependence": "dependence between positions and differences between texts",
    "drift": "drift of the drafter, or chance",
    "draft": "the time of drafting",
    "verify": "verifying several tokens in one call",
    "overhead": "the loop's own time",
    "baseline": "the baseline's time per token against the bare call",
}
_NO_REPLAY = "dependence, drift or chance (no replay tells them apart)"


def verdict(account: Account) -> str:
    """One sentence: whether speculation pays, the factor that costs most, what gains most, and how sure that is.

    A factor or speedup whose interval contains 1 is called not significant; a gain is named only if it is significant
    or has no interval.
    """
    factors = {name: value for name, value in account.factors.items() if name != "omega"}
    guilty, best = min(factors, key=factors.__getitem__), max(factors, key=factors.__getitem__)
    interval = account.intervals["speedup"]
    if contains_one(interval):
        outcome = "Whether speculation pays is not settled, the interval of its speedup contains 1"
    else:
        outcome = "Speculation pays" if account.speedup > 1 else "Speculation does not pay"
    parts = [
        f"{outcome}: speedup {_explained(interval)}, where theory promises {account.factors['omega']:.3f} tokens "
        f"per round at gamma {account.gamma} and alpha {account.alpha:.3f}"
    ]
    sure = [name for name in factors if contains_one(account.intervals[name]) is False and factors[name] < 1]
    if factors[guilty] >= 1 - EXACT:
        parts.append("no factor costs anything")
    elif not contains_one(account.intervals[guilty]):
        parts.append(f"what costs most is {_named(account, guilty)}; {_without(account, guilty)}")
    else:
        parts.append(f"what costs most is {_named(account, guilty)}")
        if sure:
            surely = min(sure, key=factors.__getitem__)
            parts.append(f"the largest significant loss is {_named(account, surely)}; {_without(account, surely)}")
        else:
            parts.append("no loss is significant")
    if factors[best] > 1 + EXACT and not contains_one(account.intervals[best]):
        parts.append(f"what gains most is {_named(account, best)}")
    return "; ".join(parts) + "."


def time_split(account: Account) -> str:
    """The additive split of a round's time, which no order of factors changes."""
    g, v, o = (_bounded(account.intervals[name]) for name in ("g", "v", "o"))
    total = sum(account.time.values())
    return (
        f"A round takes {total:.3f} times a bare call of the target (t1 = {1e3 * account.t1_s:.3g} ms): "
        f"verification v = {v}, drafting g = {g}, the rest o = {o}."
    )


def _without(account: Account, factor: str) -> str:
    """What the speedup would be if the factor were 1."""
    without = account.speedup / account.factors[factor]
    if account.speedup > 1:
        return f"without it the speedup would be {without:.3f}"
    if without > 1:
        return f"without it speculation would pay, with {without:.3f}"
    return f"even without it speculation would not pay, with {without:.3f}"


def _cause(account: Account, factor: str) -> str:
    return _NO_REPLAY if factor == "dependence" and "drift" not in account.factors else _CAUSES[factor]


def _named(account: Account, factor: str) -> str:
    """The factor in words with its value, interval, and whether the interval settles it."""
    interval = account.intervals[factor]
    value = f"{_cause(account, factor)} (`{factor}` {interval.estimate:.3f}"
    if contains_one(interval) is None:
        return f"{value})"
    unsure = " and contains 1: not significant" if contains_one(interval) else ""
    return f"{value}, {interval.level:.0%} interval {interval.low:.3f} to {interval.high:.3f}{unsure})"


def _bounded(interval: Interval) -> str:
    """Such as "0.894 (0.850 to 0.930)", or the value alone."""
    if contains_one(interval) is None:
        return f"{interval.estimate:.3f}"
    return f"{interval.estimate:.3f} ({interval.low:.3f} to {interval.high:.3f})"


def _explained(interval: Interval) -> str:
    """As `_bounded`, with the reason where there is no interval."""
    if contains_one(interval) is not None:
        return _bounded(interval)
    why = "one prompt" if interval.prompts == 1 else "undefined in too many replicates"
    return f"{interval.estimate:.3f} (no interval: {why})"


# Tables -------------------------------------------------------------------------------------------


def factor_table(account: Account) -> pd.DataFrame:
    """A row per factor in order, and the speedup: words, formula, value, interval, product so far, what it does."""
    rows, product = [], 1.0
    for factor, value in account.factors.items():
        product *= value
        words, interval = words_for(account, factor), account.intervals[factor]
        rows.append(
            {
                "factor": factor,
                "meaning": words.name,
                "formula": words.symbol,
                "value": value,
                "ci_low": interval.low,
                "ci_high": interval.high,
                "product": product,
                "effect": "theory" if factor == "omega" else _effect(interval),
            }
        )
    interval = account.intervals["speedup"]
    last = {"factor": "speedup", "meaning": "measured, wall clock", "formula": "product", "value": account.speedup}
    rows.append({**last, "ci_low": interval.low, "ci_high": interval.high, "product": product, "effect": ""})
    return pd.DataFrame(rows)


def _effect(interval: Interval) -> str:
    if abs(interval.estimate - 1) <= EXACT:
        return "none"
    direction = "costs" if interval.estimate < 1 else "gains"
    return {None: f"{direction} (no interval)", True: "not significant", False: direction}[contains_one(interval)]


def time_table(account: Account) -> pd.DataFrame:
    """The additive split of a round: verify, draft and the rest, in t(1) and in milliseconds, with their shares."""
    total = sum(account.time.values())
    rows = []
    for term, part in (("v", "verify"), ("g", "draft"), ("o", "rest")):
        interval, value = account.intervals[term], account.time[term]
        rows.append(
            {
                "part": part,
                "term": term,
                "over t(1)": value,
                "ci_low": interval.low,
                "ci_high": interval.high,
                "ms": 1e3 * value * account.t1_s,
                "share": value / total,
            }
        )
    whole = {"part": "round", "term": "v + g + o", "over t(1)": total, "ci_low": nan, "ci_high": nan}
    return pd.DataFrame([*rows, {**whole, "ms": 1e3 * total * account.t1_s, "share": 1.0}])


def group_table(groups: Sequence[GroupAccount], by: str) -> pd.DataFrame:
    """A row per group: prompts, alpha, factors, speedup with its interval, and the factor that costs most."""
    rows = []
    for group in groups:
        account, interval = group.account, group.account.intervals["speedup"]
        costs = {name: value for name, value in account.factors.items() if name != "omega"}
        lowest = min(costs, key=costs.__getitem__)
        rows.append(
            {
                by: group.name,
                "prompts": account.prompts,
                "alpha": account.alpha if group.own_alpha else nan,
                **account.factors,
                "speedup": account.speedup,
                "ci_low": interval.low,
                "ci_high": interval.high,
                "costs most": lowest if costs[lowest] < 1 - EXACT else "none",
            }
        )
    return pd.DataFrame(rows)


def without_alpha(groups: Sequence[GroupAccount], by: str) -> tuple[str, ...]:
    """A sentence about the groups whose texts gave no alpha; nothing where all gave one."""
    names = [group.name for group in groups if not group.own_alpha]
    if not names:
        return ()
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return (
        f"No proposal was ever tested for {len(names)} of {len(groups)} ({shown}): alpha cannot be estimated for such "
        f"a {by}, its account is under the run's alpha, and `offered` carries what was not proposed.",
    )


# Sections -----------------------------------------------------------------------------------------


def account_sections(run: Run) -> list[Section]:
    """The account of the primary gamma; by category where there are several; the worst and the best prompts.

    UsageError if the run lacks what an account needs.
    """
    sums = account_sums(run)
    account = sums.account()
    text = [verdict(account), time_split(account)]
    if account.prompts == 1:
        text.append("One prompt: no bootstrap over prompts, so no intervals and no word on significance.")
    sections = [
        Section(
            title="The gap, explained",
            text=tuple(text),
            tables=(
                ("Factors from theory to the wall clock; their product is the speedup", factor_table(account)),
                ("A round's time, whatever the order of factors", time_table(account)),
            ),
            figures=(("account", waterfall(account, title=f"From theory to the measured speedup\n{run.title}")),),
        )
    ]
    categories = sums.by("category")
    if len(categories) > 1:
        sections.append(_category_section(categories))
    if account.prompts > 1:
        sections.append(_prompt_section(sums))
    return sections


def _category_section(groups: Sequence[GroupAccount]) -> Section:
    order = sorted(groups, key=lambda group: group.account.speedup)
    worst, best = order[0], order[-1]
    paying = sum(group.account.speedup > 1 for group in groups)
    sentence = (
        f"Speculation pays in {paying} of {len(groups)} categories: speedup from "
        f"{_explained(worst.account.intervals['speedup'])} in {worst.name} to "
        f"{_explained(best.account.intervals['speedup'])} in {best.name}."
    )
    table = group_table(groups, "category")
    caption = "The account of each category, under its own alpha; intervals of the speedup over its prompts"
    return Section("The account by category", (sentence, *without_alpha(groups, "category")), ((caption, table),))


def _prompt_section(sums: AccountSums) -> Section:
    groups = sums.by("prompt")
    speedups = np.array([group.account.speedup for group in groups])
    order = np.argsort(speedups, kind="stable")
    shown = min(SHOWN_PROMPTS, len(groups) // 2)
    worst, best = ([groups[i] for i in rows] for rows in (order[:shown], order[::-1][:shown]))
    below = int((speedups < 1).sum())
    sentence = (
        f"{below} of {len(groups)} prompts are slower with the drafter than without; the speedup of a prompt goes "
        f"from {speedups.min():.3f} to {speedups.max():.3f}, median {np.median(speedups):.3f} (a single prompt has no "
        "interval)."
    )
    columns = ["ci_low", "ci_high", "prompts"]  # of one prompt
    tables = [
        (
            f"The {len(part)} {which} prompts, each under its own alpha",
            group_table(part, "prompt").drop(columns=columns),
        )
        for which, part in (("slowest", worst), ("fastest", best))
    ]
    return Section("Worst and best prompts", (sentence, *without_alpha(groups, "prompt")), tuple(tables))
