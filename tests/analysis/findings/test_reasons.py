"""The reasons that are said first of a run: each where it is one, in one order; one that explains all stands alone."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from fixtures.rounds_tables import FACTS

from specdec.analysis.busy_machine import BusyMachine
from specdec.analysis.findings.reasons import reasons
from specdec.analysis.findings.summary import ArmSummary, Summary

PASSES = {"4": [1.5, 1.6, 1.5, 1.4, 1.5], "5": [1.2, 1.3, 1.2, 1.2, 1.6]}  # the larger is faster in four of five passes
CALLS = {size: 4 * times for size, times in PASSES.items()}


@pytest.fixture
def said(make_account):
    """Return the reasons of a run of gammas 3 and 4, faster at 4, whose prompts are "a" to "e"."""

    def build(
        tokens=(10, 10, 10, 10, 10),
        accepted=3,
        offered=9,
        per_round=2.0,
        categories=("code", "code", "text", "text", "text"),
        speedups: dict[str, tuple[float, float]] | None = None,
        calls: dict[str, list[float]] | None = None,
        structure="chain",
        busy=0.0,
    ) -> list[str]:
        prompts = list("abcde")
        sums = pd.DataFrame({"tokens": tokens, "offered": offered, "accepted": accepted, "rounds": 5}, index=prompts)
        metrics = {"speedup.prompt_mean": 1.25}
        for name, (value, low) in (speedups or {"code": (1.7, 1.5), "text": (1.7, 1.4)}).items():
            ends = {"": value, ".ci_low": low, ".ci_high": value + 0.2}
            metrics |= {f"category/{name}/speedup{end}": bound for end, bound in ends.items()}
        arms = {}
        for gamma, speedup in ((3, 1.36), (4, 1.7)):
            account = make_account({"omega": speedup})
            account.intervals["tokens_per_round"] = replace(account.intervals["omega"], estimate=per_round)
            arms[gamma] = ArmSummary("ngram", gamma, sums, metrics, account, {})
        rounds = pd.DataFrame({"prompt": prompts, "category": categories})
        work: Any = SimpleNamespace(primary_gamma=4, arms={4: rounds}, machine=BusyMachine(busy, 25, 5, {}, {}))
        medians = {size: {"ratio": sorted(times)[len(times) // 2]} for size, times in (calls or {}).items()}
        calibration = {"calls": calls, "t_n": medians} if calls else {}
        return reasons(Summary(work, arms), replace(FACTS, structure=structure), "mix", calibration)

    return build


def test_an_ordinary_run_needs_no_reason(said):
    assert said() == []
    assert said(tokens=(20, 10, 5, 5, 5)) == []  # 44% of the tokens
    assert said(categories=["mix"] * 5) == []  # prompts without a category have the name of their set


def test_where_nothing_was_gained_that_is_the_only_reason(said):
    all_of_them = {"tokens": (90, 1, 1, 1, 1), "categories": ["code"] * 5, "calls": CALLS}
    (silent,) = said(offered=0, accepted=0, per_round=1.0, **all_of_them)
    assert silent.startswith("No draft token was offered in any of 25 rounds: the drafter found nothing to propose")
    (none,) = said(accepted=0, per_round=1.0, **all_of_them)
    assert none.startswith("None of 45 draft tokens was accepted: every round committed one token, as plain decoding")
    (wasted,) = said(accepted=1, per_round=1.0)  # the last token of each text was accepted, in the place of its own
    assert wasted.startswith("None of 45 draft tokens saved a call of the target, though 5 were accepted: every round")


def test_machine_then_text_then_category_then_cost(said):
    machine, text, category, cost = said(tokens=(90, 1, 1, 1, 1), categories=["code"] * 5, calls=CALLS, busy=0.23)
    assert machine.startswith("The machine was busy with other work for 23% of the time; these rounds are left out")
    assert said(busy=0.01) == [], "hardly any of its time"
    assert text.startswith("One text of 5, a, holds 96% of all tokens") and text.endswith("speedups is 1.250.")
    assert category == "All prompts are of one category, code: nothing here speaks for others."
    assert cost.startswith("A call on 5 tokens takes less time here than one on 4, 1.20 and 1.50 of one on a single")
    assert cost.endswith("goes from 1.36 at gamma 3 to 1.70 at gamma 4, though tokens per round change by +0% alone.")


@pytest.mark.parametrize(
    ("speedups", "says"),
    [
        ({"code": (2.9, 2.5), "text": (0.97, 0.9)}, "the speedup is 2.900 (2.500 to 3.100) in code, 0.970 in text."),
        ({"code": (2.9, 0.9), "text": (0.97, 0.9)}, ""),  # the gain is not sure
        ({"code": (2.9, 2.5), "text": (1.01, 0.9)}, ""),
    ],
)
def test_a_gain_of_one_category_alone(said, speedups, says):
    reasons = said(speedups=speedups)
    assert len(reasons) == bool(says) and all(reason.endswith(says) for reason in reasons)


@pytest.mark.parametrize(
    "changes",
    [
        {"calls": {"4": CALLS["4"], "5": 4 * [1.2, 1.3, 1.2, 1.6, 1.6]}},  # faster in three of five passes
        {"calls": {"4": [1.2] * 20, "5": [1.18] * 20}},  # by too little
        {"calls": {"4": CALLS["5"], "5": CALLS["4"]}},
        {"calls": PASSES},  # by chance one time in five
        {"calls": CALLS, "structure": "tree"},
    ],
)
def test_no_step_where_the_larger_call_is_not_surely_cheaper(said, changes):
    assert said(**changes) == []
