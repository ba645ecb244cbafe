"""The reasons that explain a run before any of its figures does, in the one order in which they are said.

Each reason is a sentence. A machine that was busy with other work is the first: it says what times stand for, or that
they stand for nothing. Where drafts gained nothing that is all there is to explain; then come what the figures rest on
alone, one text or one category, and a step in the cost of a call that decides about gamma.
"""

from collections.abc import Mapping
from itertools import pairwise
from statistics import mean
from typing import Any

from ..account.verdicts import nothing_gained
from ..intervals import Interval
from ..read.facts import RunFacts
from ..rounds import prompt_categories
from ..sections import counted
from .run_sections import by_category
from .summary import ArmSummary, Summary

MOST_TOKENS = 0.5  # share of all tokens from which on one text decides about pooled figures
CHEAPER = 0.95  # a call on more tokens that takes less than this times one on fewer, and does so in
SURELY, CALLS = 0.8, 20  # this share of so many calls at least, which were timed in turn: by chance one time in 170


def reasons(summary: Summary, facts: RunFacts, prompt_set: str, calibration: Mapping[str, Any]) -> list[str]:
    """Return the reasons of a drafter's run, the most decisive first; none where the figures need none.

    Args:
        prompt_set: its name, which is the category of prompts that have none of their own.
        calibration: the content of `calibration.json`.
    """
    arm, busy = summary.primary, summary.work.machine.reasons
    if nothing := _nothing_gained(arm):
        return [*busy, nothing]
    if arm.account.doubt:
        return busy
    category = _one_category(summary, prompt_set)
    others = (_one_text(arm), category, _cheaper_call(summary, facts, calibration))
    return [*busy, *(reason for reason in others if reason)]


def _nothing_gained(arm: ArmSummary) -> str:
    offered, accepted, rounds = (int(arm.sums[name].sum()) for name in ("offered", "accepted", "rounds"))
    if not offered:
        return (
            f"No draft token was offered in any of {counted(rounds, 'round')}: the drafter found nothing to propose, "
            "so that this is plain decoding and the drafter's own time."
        )
    if not nothing_gained(arm.account):
        return ""
    said = f"None of {counted(offered, 'draft token')} "
    said += f"saved a call of the target, though {accepted:,} were accepted" if accepted else "was accepted"
    return f"{said}: every round committed one token, as plain decoding does, so that drafts can only cost."


def _one_text(arm: ArmSummary) -> str:
    tokens = arm.sums["tokens"]
    share = tokens.max() / tokens.sum()
    if share <= max(MOST_TOKENS, 2 / len(tokens)):
        return ""
    return (
        f"One text of {len(tokens)}, {tokens.idxmax()}, holds {share:.0%} of all tokens, so that pooled figures are "
        f"nearly its own; the mean of the texts' speedups is {arm.metrics['speedup.prompt_mean']:.3f}."
    )


def _one_category(summary: Summary, prompt_set: str) -> str:
    """Say that all prompts are of one category among others, or that the gain is that of one category alone."""
    arm, categories = summary.primary, set(prompt_categories(summary.work.arms[summary.work.primary_gamma]))
    if len(categories) == 1:
        (only,) = categories
        alike = f"All prompts are of one category, {only}: nothing here speaks for others."
        return "" if only in ("", prompt_set) else alike
    speedups = {name: Interval.from_metrics(each, "speedup") for name, each in by_category(arm.metrics).items()}
    gaining = [name for name, each in speedups.items() if each.estimate > 1]
    if arm.account.speedup <= 1 or len(gaining) != 1 or not speedups[gaining[0]].low > 1:
        return ""
    others = ", ".join(f"{each.estimate:.3f} in {name}" for name, each in speedups.items() if name not in gaining)
    return f"All of the gain is that of one category: the speedup is {speedups[gaining[0]]} in {gaining[0]}, {others}."


def _cheaper_call(summary: Summary, facts: RunFacts, calibration: Mapping[str, Any]) -> str:
    """Name the largest jump of the speedup between neighbouring gammas that comes with a faster call on more tokens."""
    calls = {int(size): seconds for size, seconds in calibration.get("calls", {}).items()}
    gammas = [gamma for gamma in sorted(summary.arms) if gamma + 1 in calls]
    jumps = {}
    for few, many in pairwise(gammas if facts.structure == "chain" else ()):
        ratios = [calibration["t_n"][str(gamma + 1)]["ratio"] for gamma in (few, many)]
        faster = [more < less for less, more in zip(calls[few + 1], calls[many + 1], strict=True)]
        surely = len(faster) >= CALLS and mean(faster) >= SURELY
        before, after = (summary.arms[gamma].account for gamma in (few, many))
        tokens = after.value("tokens_per_round") / before.value("tokens_per_round")
        gain = after.speedup / before.speedup
        if surely and ratios[1] < CHEAPER * ratios[0] and gain > max(1.0, tokens):
            jumps[gain / tokens] = (
                f"A call on {many + 1} tokens takes less time here than one on {few + 1}, {ratios[1]:.2f} and "
                f"{ratios[0]:.2f} of one on a single token: so the speedup goes from {before.speedup:.2f} at gamma "
                f"{few} to {after.speedup:.2f} at gamma {many}, though tokens per round change by {tokens - 1:+.0%} "
                "alone."
            )
    return jumps[max(jumps)] if jumps else ""
