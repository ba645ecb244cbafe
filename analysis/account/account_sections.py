"""The gap account in words, tables and a picture: which factor is responsible, and how sure that is."""

from collections.abc import Sequence
from math import nan

import numpy as np
import pandas as pd

from ..findings import Section
from ..intervals import Interval, too_few
from ..read.runs import Run
from .formula_gap import account_gap, formula_verdict
from .gap_account import Account
from .run_account import AccountSums, GroupAccount, account_sums
from .waterfall import EXACT, name_of, waterfall

_PROMISED = ("omega", "draft")  # what the formula itself counts
_NETTED = ("overhead", "baseline")  # in one for sentences: plain decoding runs the same loop
SHOWN_PROMPTS = 5  # of the slowest, and of the fastest


def verdict(account: Account, simulated: bool = False, noise: float = 0.0) -> str:
    """Say in one sentence whether speculation pays, how far that is from the textbook formula, and what the gap is.

    The formula counts the drafts that were paid for, so drafting is in the promise and not in the gap. What the gap is
    made of are the factors of `causes`; one whose interval contains 1 is called not significant, and a gain is named
    only if it is significant or has no interval.

    Nothing is claimed of fewer than `FEWEST` prompts, without an interval, and within the noise.

    Args:
        simulated: times come from a cost model.
        noise: `null/floor` of the run, 0 without a null control.
    """
    interval, formula, g = account.intervals["speedup"], account.intervals["formula"], account.intervals["g"]
    if doubt := unsettled(account, noise):
        outcome = f"Whether speculation pays is not settled, {doubt}"
    else:
        outcome = "Speculation pays" if account.speedup > 1 else "Speculation does not pay"
    promised = (
        f"{account.factors['omega']:.3f} tokens per round at gamma {account.gamma} and alpha {account.alpha:.3f}, and "
        f"drafts that take {g.estimate:.3f} of a bare call"
    )
    parts = [
        f"{outcome}: {'simulated ' * simulated}speedup {_explained(interval)}; the textbook formula promises "
        f"{formula.estimate:.3f}, an error of {account.intervals['speedup_error']:+.1%} ({promised})",
        *_gap_in_words(account),
    ]
    if account.speedup < 1 and "draft" in account.factors and formula.estimate < 1:
        free = account.speedup * (1 + g.estimate)
        parts.append(f"by the formula it would not pay either; drafts that took no time would make it {free:.3f}")
    return "; ".join(parts) + "."


def unsettled(account: Account, noise: float) -> str:
    """Say in a clause why an account does not settle whether speculation pays; "" where it does."""
    interval = account.intervals["speedup"]
    if few := too_few(account.prompts):
        return few
    if not interval.known:
        return "its speedup has no interval"
    if interval.contains(1.0):
        return "the interval of its speedup contains 1"
    if max(interval.estimate, 1 / interval.estimate) <= 1 + noise:
        return f"its speedup is within the noise of {noise:.1%} that plain decoding has against itself"
    return ""


def causes(account: Account) -> dict[str, Interval]:
    """Return the factors between the formula's speedup and the measured one; their product is the one over the other.

    They are offered, dependence, drift, verify and `loop`, the loop's overhead net of the baseline's own.
    """
    found = {name: account.intervals[name] for name in account.factors if name not in (*_PROMISED, *_NETTED)}
    return found | ({"loop": account.intervals["loop"]} if set(_NETTED) & set(account.factors) else {})


def _gap_in_words(account: Account) -> list[str]:
    """Say what costs most of the gap and what gains most, as clauses."""
    found = causes(account)
    if not found:
        return ["no factor costs anything"]
    guilty, best = (pick(found, key=lambda name: found[name].estimate) for pick in (min, max))
    sure = [name for name, value in found.items() if value.contains(1.0) is False and value.estimate < 1]
    parts = []
    if found[guilty].estimate >= 1 - EXACT:
        parts.append("no factor costs anything")
    elif not found[guilty].contains(1.0):
        parts.append(f"what costs most is {_named(account, guilty)}; {_without(account, guilty)}")
    else:
        parts.append(f"what costs most is {_named(account, guilty)}")
        if sure:
            surely = min(sure, key=lambda name: found[name].estimate)
            parts.append(f"the largest significant loss is {_named(account, surely)}; {_without(account, surely)}")
        else:
            parts.append("no loss is significant")
    if found[best].estimate > 1 + EXACT and not found[best].contains(1.0):
        parts.append(f"what gains most is {_named(account, best)}")
    return parts


def time_split(account: Account) -> str:
    """Say what a round's time is made of, which no order of factors changes, and what the loop costs net."""
    g, v, o = (f"{account.intervals[name]:.3f}" for name in ("g", "v", "o"))
    total = sum(account.time.values())
    return (
        f"A round takes {total:.3f} times a bare call of the target (t1 = {1e3 * account.t1_s:.3g} ms): "
        f"verification v = {v}, drafting g = {g}, the rest o = {o}. The baseline's steps have a rest of their own: net "
        f"of it the loop's time is a factor of {account.intervals['loop']:.3f} (`overhead` x `baseline`)."
    )


def _without(account: Account, factor: str) -> str:
    """Say what the speedup would be if the factor were 1."""
    without = account.speedup / account.intervals[factor].estimate
    if account.speedup > 1:
        return f"without it the speedup would be {without:.3f}"
    if without > 1:
        return f"without it speculation would pay, with {without:.3f}"
    return f"even without it speculation would not pay, with {without:.3f}"


def _named(account: Account, factor: str) -> str:
    """Return the factor in words with its value and interval, and a remark where the interval does not settle it."""
    interval = account.intervals[factor]
    unsure = ", not significant because the interval contains 1" if interval.contains(1.0) else ""
    return f"{name_of(account, factor).cause}, `{factor}` {interval:.3f}{unsure}"


def _explained(interval: Interval) -> str:
    """Return the interval, or the estimate with the reason why it has none."""
    if interval.known:
        return f"{interval:.3f}"
    why = "one prompt" if interval.prompts == 1 else "undefined in too many replicates"
    return f"{interval:.3f} (no interval: {why})"


# Tables -------------------------------------------------------------------------------------------


def factor_table(account: Account, simulated: bool = False) -> pd.DataFrame:
    """Return a line per factor in order, and one for the speedup: name, formula, value, product so far, effect."""
    lines, product = [], 1.0
    for factor, value in account.factors.items():
        product *= value
        words, interval = name_of(account, factor), account.intervals[factor]
        lines.append(
            {
                "factor": factor,
                "meaning": words.name,
                "formula": words.symbol,
                "value": interval,
                "product": product,
                "effect": "theory" if factor == "omega" else _effect(interval),
            }
        )
    clock = "simulated by a cost model" if simulated else "measured, wall clock"
    last = {"factor": "speedup", "meaning": clock, "formula": "product", "product": product}
    lines.append({**last, "value": account.intervals["speedup"], "effect": ""})
    return pd.DataFrame(lines)


def _effect(interval: Interval) -> str:
    if abs(interval.estimate - 1) <= EXACT:
        return "none"
    direction = "costs" if interval.estimate < 1 else "gains"
    return {None: f"{direction} (no interval)", True: "not significant", False: direction}[interval.contains(1.0)]


def time_table(account: Account) -> pd.DataFrame:
    """Return the parts of a round (verify, draft and the rest) in t(1) and in milliseconds, with their shares."""
    total = sum(account.time.values())
    parts = [
        {"part": part, "term": term, "over t(1)": account.intervals[term]}
        for term, part in (("v", "verify"), ("g", "draft"), ("o", "rest"))
    ]
    table = pd.DataFrame([*parts, {"part": "round", "term": "v + g + o", "over t(1)": Interval(total)}])
    times = np.array([account.time["v"], account.time["g"], account.time["o"], total])
    return table.assign(ms=1e3 * times * account.t1_s, share=times / total)


def group_table(groups: Sequence[GroupAccount], by: str) -> pd.DataFrame:
    """Return a line per group: prompts, alpha, factors, speedup with its interval, and which of `causes` costs most."""
    lines = []
    for group in groups:
        account = group.account
        costs = {name: value.estimate for name, value in causes(account).items()}
        lowest = min(costs, key=costs.__getitem__)
        lines.append(
            {
                by: group.name,
                "prompts": account.prompts,
                "alpha": account.alpha if group.own_alpha else nan,
                **account.factors,
                "speedup": account.intervals["speedup"],
                "costs most": lowest if costs[lowest] < 1 - EXACT else "none",
            }
        )
    return pd.DataFrame(lines)


def without_alpha(groups: Sequence[GroupAccount], by: str) -> tuple[str, ...]:
    """Name the groups whose texts gave no alpha, in a sentence; empty where all gave one."""
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
    """Return the account of the primary gamma, by category where there are several, and the worst and best prompts.

    UsageError if the run lacks what an account needs.
    """
    sums = account_sums(run)
    account = sums.account()
    sections = [account_section(account, run.title, run.simulated, run.metrics.get("null/floor", 0.0))]
    categories = sums.by("category")
    if len(categories) > 1:
        sections.append(_category_section(categories))
    if account.prompts > 1:
        sections.append(_prompt_section(sums))
    return sections


def account_section(account: Account, title: str, simulated: bool = False, noise: float = 0.0) -> Section:
    """Explain one account: the factors and the time of a round, in words, tables and a waterfall.

    Args:
        title: drafter, model and hardware, for the figure.
        simulated: times come from a cost model.
        noise: `null/floor` of the run, 0 without a null control.
    """
    text = [formula_verdict(account_gap(account)), verdict(account, simulated, noise), time_split(account)]
    if account.prompts == 1:
        text.append("One prompt: no bootstrap over prompts, so no intervals and no word on significance.")
    clock = "cost model's clock" if simulated else "wall clock"
    return Section(
        title="The gap, explained",
        text=tuple(text),
        tables=(
            (f"Factors from theory to the {clock}; their product is the speedup", factor_table(account, simulated)),
            ("A round's time, whatever the order of factors", time_table(account)),
        ),
        figures=(("account", waterfall(account, title=f"{_headline(account)}\n{title}", simulated=simulated)),),
    )


def _headline(account: Account) -> str:
    """Say what the waterfall shows: how far it leads, and which of `causes` takes most away."""
    way = f"From {account.factors['omega']:.2f} tokens per round to a speedup of {account.speedup:.2f}"
    found = {name: value.estimate for name, value in causes(account).items()}
    lowest = min(found, key=found.__getitem__, default="")
    if not lowest or found[lowest] >= 1 - EXACT:
        return f"{way}: nothing is lost"
    return f"{way}: {name_of(account, lowest).name} costs most, ×{found[lowest]:.2f}"


def _category_section(groups: Sequence[GroupAccount]) -> Section:
    order = sorted(groups, key=lambda group: group.account.speedup)
    worst, best = order[0], order[-1]
    paying = sum(group.account.speedup > 1 for group in groups)
    sentence = (
        f"The speedup is above 1 in {paying} of {len(groups)} categories: from "
        f"{_explained(worst.account.intervals['speedup'])} in {worst.name} to "
        f"{_explained(best.account.intervals['speedup'])} in {best.name}."
    )
    table = group_table(groups, "category")
    caption = "The account of each category, under its own alpha; intervals of the speedup over its prompts"
    return Section("The account by category", (sentence, *without_alpha(groups, "category")), ((caption, table),))


def _prompt_section(sums: AccountSums) -> Section:
    groups = sums.by("prompt")
    speedups = np.array([group.account.speedup for group in groups])
    shown = min(SHOWN_PROMPTS, len(groups) // 2)
    order = [groups[place] for place in np.argsort(speedups, kind="stable")]
    worst, best = order[:shown], order[::-1][:shown]
    below = int((speedups < 1).sum())
    sentence = (
        f"{below} of {len(groups)} prompts are slower with the drafter than without; the speedup of a prompt goes "
        f"from {speedups.min():.3f} to {speedups.max():.3f}, median {np.median(speedups):.3f} (a single prompt has no "
        "interval)."
    )
    columns = ["prompts"]  # 1 for a single prompt
    tables = [
        (f"The {shown} {which} prompts, each under its own alpha", group_table(part, "prompt").drop(columns=columns))
        for which, part in (("slowest", worst), ("fastest", best))
    ]
    return Section("Worst and best prompts", (sentence, *without_alpha(groups, "prompt")), tuple(tables))
