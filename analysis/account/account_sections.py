"""The gap account in words, tables and a picture: which factor is responsible, and how sure that is."""

from collections.abc import Sequence
from math import isnan, nan

import numpy as np
import pandas as pd

from ..intervals import Interval, too_few
from ..read.runs import Run
from ..sections import Section
from .gap_account import EXACT, TIMED, Account
from .run_account import GroupAccount, account_sums
from .verdicts import explained, formula_verdict, losses, time_split, verdict
from .waterfall import waterfall

SHOWN_PROMPTS = 5  # of the slowest, and of the fastest


def factor_table(account: Account, simulated: bool = False) -> pd.DataFrame:
    """Return a line per factor in order, and one for what was measured: name, formula, value, product so far, effect.

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
        lines.append(
            {
                "factor": factor,
                "meaning": words.name,
                "formula": words.symbol,
                "value": interval,
                "product": product,
                "effect": effect,
            }
        )
    timed = not isnan(account.t1_s)
    clock = "simulated by a cost model" if simulated else "measured, wall clock"
    last = {"factor": "speedup", "meaning": clock} if timed else {"factor": "tokens per round", "meaning": "measured"}
    measured = account.intervals["speedup" if timed else "tokens_per_round"]
    lines.append({**last, "formula": "product", "value": measured, "product": product, "effect": ""})
    return pd.DataFrame(lines)


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
    return pd.DataFrame(
        [
            {
                by: group.name,
                "prompts": group.account.prompts,
                "alpha": group.account.alpha if group.own_alpha else nan,
                **group.account.factors,
                "speedup": group.account.intervals["speedup"],
                "costs most": losses(group.account).largest or "none",
            }
            for group in groups
        ]
    )


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


def account_sections(run: Run) -> list[Section]:
    """Return the account of the primary gamma, by category where there are several, and the worst and best prompts.

    UsageError if the run lacks what an account needs.
    """
    sums = account_sums(run)
    account = sums.account()
    sections = [account_section(account, run)]
    groups = sums.by("category")
    if len(groups) > 1:
        worst, *_, best = sorted(groups, key=lambda group: group.account.speedup)
        paying = sum(group.account.speedup > 1 for group in groups)
        sentence = (
            f"The speedup is above 1 in {paying} of {len(groups)} categories: from "
            f"{explained(worst.account.intervals['speedup'])} in {worst.name} to "
            f"{explained(best.account.intervals['speedup'])} in {best.name}."
        )
        caption = "The account of each category, under its own alpha; intervals of the speedup over its prompts"
        table = group_table(groups, "category")
        text = (sentence, *without_alpha(groups, "category"))
        sections.append(Section("The account by category", text, ((caption, table),)))
    if account.prompts > 1:
        groups = sums.by("prompt")
        speedups = np.array([group.account.speedup for group in groups])
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
    largest, _ = losses(account)
    most = f"{account.named(largest).name} costs most, ×{account.value(largest):.2f}" if largest else "nothing is lost"
    most = "not told apart from a busy machine" if account.doubt else f"besides drafting, {most}"
    headline = f"From {account.factors['omega']:.2f} tokens per round to a speedup of {account.speedup:.2f}: {most}"
    return Section(
        title="The gap, explained",
        text=tuple(text),
        tables=(
            (
                f"Factors from the capped geometric to the {clock}; their product is the speedup",
                factor_table(account, simulated),
            ),
            ("A round's time, whatever the order of factors", time_table(account)),
        ),
        figures=(("account", waterfall(account, title=f"{headline}\n{run.title}", simulated=simulated)),),
    )
