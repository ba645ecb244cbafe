"""The tests of the i.i.d. model in words: what each asks, what it finds, how large the effect is, what to beware of."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan, nan

import pandas as pd

from ..intervals import Interval, too_few
from ..sections import Section, counted
from . import iid
from .iid import IidTest

TITLE = "Is acceptance independent and the same everywhere?"
SIGNIFICANT = 0.05
NO_ORDER = "the source has no order of rounds"
PERMUTATIONS, FEWER = 1999, 199  # of the memory test; fewer with very many rounds, where any memory shows
MANY = 200_000  # rounds
QUESTIONS = {  # test: question, reading of a rejection, reading of none
    "depth": ("Does acceptance vary with depth?", "it varies with depth", "no sign that it does"),
    "trend": ("Does it rise or fall with depth?", "it {direction} with depth", "no trend seen"),
    "mixing": ("Do rounds differ?", "some rounds are easier than others, or depth matters", "no sign that they do"),
    "prompts": ("Do prompts differ (chi-squared)?", "some prompts are easier than others", "no sign that they do"),
    "prompts_beta": ("Do prompts differ (prompt beta)?", "some prompts are easier than others", "no sign that they do"),
    "memory": ("Do neighbouring rounds resemble each other?", "they {likeness}", "no sign that they do"),
    "previous_round": (
        "Does it matter whether the round before was full?",
        "alpha is {after} after a full round",
        "no sign that it does",
    ),
    "same_alpha": ("Is alpha the same at every gamma?", "alpha differs between gammas", "no sign that it differs"),
    "implementation": (
        "Does the run take the rounds that its replay expects?",
        "it takes {pace} rounds than expected",
        "it does, as far as can be seen",
    ),
}
MEANING = {  # test: the size of its effect
    "depth": "acceptance at depth 2 and beyond, less that at depth 1",
    "trend": "change of acceptance per depth",
    "mixing": "correlation rho within a round (beta-geometric)",
    "prompts": "design effect: variance of alpha over that of independent tests",
    "prompts_beta": "correlation rho within a prompt (prompt beta)",
    "memory": "correlation of neighbouring rounds of a prompt",
    "previous_round": "alpha after a full round, less alpha after another",
    "same_alpha": "alpha at the largest gamma, less that at the smallest",
    "implementation": "tokens per round over the replay's",
}


@dataclass(frozen=True)
class Evidence:
    """The rounds that the tests are made on."""

    rounds: pd.DataFrame  # distinct generations at one gamma
    sums: Mapping[int, pd.DataFrame]  # accepted and tested positions by prompt (index), at every gamma
    done: pd.DataFrame  # rounds at that gamma with their repeats
    replay: pd.DataFrame | None  # expected rounds along the same texts; None where there is none, for the reason in
    no_replay: str
    ordered: bool  # False where nobody recorded which round follows which


def tests_section(evidence: Evidence, replicates: int, refits: int) -> Section:
    """Say what the tests find at one gamma."""
    rounds = evidence.rounds
    gamma = int(rounds["gamma"].iloc[0])
    tests = iid.iid_tests(rounds, FEWER if len(rounds) > MANY else PERMUTATIONS)
    tests["prompts_beta"], tests["previous_round"] = iid.prompts_beta(rounds), iid.previous_round(rounds)
    tests["same_alpha"] = iid.same_alpha(evidence.sums, replicates)
    sizes = iid.ratio_effects(rounds, replicates) | iid.correlations(rounds, refits)
    if tests["same_alpha"].p_value >= 0:
        sizes["same_alpha"] = iid.alpha_difference(evidence.sums, replicates)
    if not evidence.ordered:
        for name in ("memory", "previous_round"):
            tests[name] = IidTest(nan, nan, 0, NO_ORDER)
            del sizes[name]
    if evidence.replay is not None:
        tests["implementation"] = iid.implementation(evidence.done, evidence.replay, replicates)
        sizes["implementation"] = iid.replay_ratio(evidence.done, evidence.replay, replicates)
    else:
        tests["implementation"] = IidTest(nan, nan, 0, evidence.no_replay)
    lines = []
    for name, (question, yes, no) in QUESTIONS.items():
        test, size = tests[name], sizes.get(name)
        up = (size.estimate if size is not None else test.statistic) > 0
        reading = f"not tested: {test.reason}" if isnan(test.p_value) else no
        if test.p_value < SIGNIFICANT:
            reading = yes.format(
                direction="rises" if test.statistic > 0 else "falls",
                likeness="do" if up else "alternate: a long round follows a short one",
                after="higher" if up else "lower",
                pace="fewer" if test.statistic > 1 else "more",
            )
        p_value = "< 0.001" if test.p_value < 0.001 else f"{Interval(test.p_value):.3f}"
        effect = MEANING[name], "–" if size is None else f"{size:.3f}"
        lines.append((question, f"{Interval(test.statistic):.3f}", p_value, reading, *effect))
    caption = (
        f"Tests of the i.i.d. capped-geometric model at gamma {gamma}: {counted(len(rounds), 'round')} of "
        f"{counted(rounds['prompt'].nunique(), 'prompt')}. Size of the effect with its 95% prompt-bootstrap interval. "
        "The last line tests the run's own rounds, not the model."
    )
    caution = (
        "All tests but those of memory, the same alpha and the implementation take rounds as independent; the "
        "intervals beside them resample prompts and do not."
    )
    if any(tests[name].p_value < SIGNIFICANT for name in ("prompts", "prompts_beta")):
        caution = (
            "Prompts differ. That alone can make the tests of depth, trend, mixing, the previous round and the same "
            "alpha reject; the memory test compares rounds within their prompt and is not deceived. The intervals "
            "resample prompts, so they say how sure a size is, but not what it comes from."
        )
    verdict = _verdict(tests, rounds["prompt"].nunique())
    columns = ["question", "statistic", "p", "reading", "size of the effect", "estimate"]
    return Section(TITLE, (verdict, caution), ((caption, pd.DataFrame(lines, columns=columns)),))


def _verdict(tests: Mapping[str, IidTest], prompts: int) -> str:
    applied = {name: test for name, test in tests.items() if not isnan(test.p_value) and name != "implementation"}
    rejecting = [name for name, test in applied.items() if test.p_value < SIGNIFICANT]
    if not applied:
        return "No test of the i.i.d. model applies to this run."
    if few := too_few(prompts):
        rejected = f"{len(rejecting)} of {len(applied)} tests reject it"
        return f"Of these rounds alone {rejected}, which says nothing of the i.i.d. model: {few}."
    if not rejecting:
        return (
            f"None of {len(applied)} tests rejects the i.i.d. model at {SIGNIFICANT:.0%}: acceptance may be independent"
            " and the same at every depth, round and prompt, as far as these rounds can tell."
        )
    chance = 1 - (1 - SIGNIFICANT) ** len(applied)
    by_chance = f" (one of so many does so by chance in up to {chance:.0%} of runs where the model is true)"
    doubt = by_chance if len(rejecting) == 1 else ""
    return (
        f"{len(rejecting)} of {len(applied)} tests reject the i.i.d. model at {SIGNIFICANT:.0%}{doubt}: "
        f"{', '.join(name.replace('_', ' ') for name in rejecting)}."
    )
