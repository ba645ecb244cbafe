"""The sentences that close a run: each outcome has its own, at most four; doubts come first, then reasons."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from fixtures.rounds_tables import FACTS

from specdec.analysis.account.gap_account import Account
from specdec.analysis.busy_machine import BusyMachine
from specdec.analysis.findings.run_metrics import ArmSummary, Summary
from specdec.analysis.findings.sentences import (
    MeasuredRun,
    closing_of_several,
    closing_sentences,
    control_notes,
    reasons,
    run_notes,
)
from specdec.analysis.intervals import Interval
from specdec.analysis.read.facts import RunStatus, SessionFacts

CONTROL = {"null/speedup": 1.001, "null/speedup.ci_low": 0.995, "null/speedup.ci_high": 1.006, "null/floor": 0.006}


def account(speedup: tuple[float, float, float] = (1.99, 1.75, 2.29), prompts: int = 18, **factors: Any) -> Account:
    """Return an account whose largest loss is `verify`, unless factors with their bounds say otherwise."""
    names = ("omega", "offered", "dependence", "drift", "draft", "verify", "overhead", "baseline")
    values = dict.fromkeys(names, (1.0, 1.0, 1.0)) | {"verify": (0.8, 0.7, 0.9), "dependence": (0.9, 0.8, 0.99)}
    values |= {"speedup": speedup, "formula": (2.5, 2.0, 3.0), "g": (0.1, 0.1, 0.1), "loop": (1.0, 0.9, 1.1), **factors}
    values |= {"alpha": (0.7, 0.6, 0.8), "offered_tokens": (4.0, 4.0, 4.0), "tokens_per_round": (2.2, 2.0, 2.4)}
    intervals = {name: Interval(*bounds, prompts=prompts) for name, bounds in values.items()}
    return Account(4, prompts, {name: intervals[name].estimate for name in names}, intervals, t1_s=0.01)


def measured(compared: int = 108, identical: int = 62, unexplained: int = 0, **changes: Any) -> MeasuredRun:
    session = SessionFacts(compared, identical, unexplained, 0, 0.0)
    run = MeasuredRun(CONTROL, account(), FACTS, session, RunStatus("finished", "", 18, 18), "bfloat16")
    facts = {name: changes.pop(name) for name in list(changes) if hasattr(FACTS, name)}
    return replace(run, facts=replace(FACTS, **facts), **changes)


PAYS = "Speculation pays here: 1.99 times as fast (1.75 to 2.29) as plain decoding, with drafts of 4 tokens."
REFUTED = PAYS.replace("Speculation pays here", "No verdict is given, because outputs are refuted")
NOISE = (
    "Decoding plainly twice differs by a factor of 1.001 (0.995 to 1.006), so that a speedup of 1.99 is more than the "
    "machine's own noise of 0.6%."
)
COST = (
    "The capped geometric promises 2.50 times as fast for 4 draft tokens a round; what costs most is verifying several "
    "tokens in one call, which takes longer than a call on one token (without that, 2.49 times as fast)."
)
SAME = "62 of 108 outputs are identical to plain decoding; all differences are near-ties of bfloat16."


def test_a_run_that_pays_closes_with_four_sentences():
    assert closing_sentences(measured()) == [PAYS, NOISE, COST, SAME]
    assert closing_sentences(measured(metrics={})) == [PAYS, COST, SAME]
    control = {name: value for name, value in CONTROL.items() if name != "null/floor"}
    noise = "by a factor of 1.001 (0.995 to 1.006): too few prompts to tell noise."
    assert closing_sentences(measured(metrics=control))[1].endswith(noise)
    first, second, *_ = closing_sentences(measured(simulated=True, metrics={}))
    assert first.startswith("Speculation pays in simulated time: ")
    assert second.startswith("Time is simulated by a cost model")


def test_reasons_come_before_the_verdict_and_behind_what_puts_it_in_doubt():
    disturbed = {**CONTROL, "null/speedup.ci_low": 1.0005}
    sentences = closing_sentences(measured(metrics=disturbed, unexplained=3, reasons=["One.", "Two."]))
    assert sentences[0].startswith("Not lossless") and sentences[1].startswith("The machine was disturbed")
    assert sentences[2:] == ["One.", "Two.", REFUTED, COST]
    runs = {"ngram": measured(reasons=["One."]), "suffix": measured(account=account((1.5, 1.3, 1.8)), reasons=["Two."])}
    assert closing_of_several(runs, "A")[0] == "Of ngram: One."


def test_loops_come_first():
    loops = {"repetition/share": 0.25, "speedup.unflagged": 1.8}
    first = closing_sentences(measured(metrics={**CONTROL, **loops}))[0]
    assert first.startswith("25% of the prompts have an output that falls into a loop (without them decoding is 1.80")
    assert first.endswith(f"s{PAYS[1:]}")
    few = measured(metrics={**CONTROL, **loops}, account=account(prompts=6))  # without them 4, too few to say anything
    assert "without them" not in closing_sentences(few)[0]


@pytest.mark.parametrize(
    ("found", "floor", "said"),
    [
        (account((0.8, 0.7, 0.9)), 0.006, "Speculation does not pay here: 0.80 times as fast (0.70 to 0.90)"),
        (account((1.1, 0.9, 1.3)), 0.006, "is not settled (the interval of its speedup contains 1): 1.10 times"),
        (account(prompts=4), 0.006, "is not settled (4 prompts are too few for a verdict, which needs 5): 1.99 times"),
        (account((1.05, 1.02, 1.08)), 0.1, "is not settled (its speedup is within the noise of 10.0% that plain"),
        (account((2.0, float("nan"), float("nan"))), 0.1, "(its speedup has no interval): 2.00 times as fast as plain"),
    ],
)
def test_what_does_not_pay_or_is_not_settled(found, floor, said):
    sentences = closing_sentences(measured(account=found, metrics={**CONTROL, "null/floor": floor}))
    assert said in sentences[0] and len(sentences) == 4
    assert ("is more than the machine's own noise" in sentences[1]) is (
        max(found.speedup, 1 / found.speedup) > 1 + floor
    )


@pytest.mark.parametrize(
    ("factors", "said"),
    [
        ({"offered": (0.5, 0.4, 0.6)}, "what costs most is that fewer tokens are proposed than were asked for"),
        ({"dependence": (0.5, 0.4, 0.6)}, "what costs most is that tokens are accepted far more often in some places"),
        ({"offered": (0.5, 0.2, 1.2)}, "what surely costs most is verifying several tokens"),
        ({"verify": (0.9, 0.8, 1.1), "dependence": (0.9, 0.7, 1.2)}, "and no cost beyond that is more than chance."),
        ({"verify": (1.0, 1.0, 1.0), "dependence": (1.1, 1.0, 1.2)}, "and nothing costs more than it counts."),
        ({"speedup": (0.8, 0.7, 0.9), "formula": (0.9, 0.8, 0.95)}, "Already by the capped geometric it would not pay"),
    ],
)
def test_what_costs_most_is_in_plain_words(factors, said):
    assert said in closing_sentences(measured(account=account(**factors)))[2]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"identical": 108}, "All 108 outputs are identical to plain decoding."),
        ({"compared": 1, "identical": 1}, "The only output that was compared is identical to plain decoding."),
        ({"identical": 107}, "the other is a near-tie of bfloat16."),
        ({"lossless": False}, "Lossy: the verifier's rule does not keep the target's law; 62 of 108 outputs are ident"),
        ({"forced": True}, "The recorded text was written whatever the target said"),
        ({"compared": 0, "identical": 0}, "Outputs are drawn at random and not compared"),
        ({"simulated": True}, "The outputs are recorded texts, so nothing is learned"),
    ],
)
def test_whether_outputs_are_identical(changes, said):
    assert said in closing_sentences(measured(**changes))[-1]


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({"standing": RunStatus("finished", "", 13, 18, 5)}, "on 13 of 18 prompts, for lack of time."),
        ({"standing": RunStatus("killed", "", 7, 18)}, "on the 7 of 18 prompts that are done so far."),
        ({"structure": "rows", "structure_label": "5 rows of 4", "batch_size": 8}, "(5 rows of 4), 8 texts at a time."),
    ],
)
def test_the_part_of_the_prompts_and_the_shape_are_named(changes, end):
    assert closing_sentences(measured(**changes))[0].endswith(end)


def test_a_busy_machine_leaves_the_tokens_of_each_drafter_on_the_prompts_that_were_decoded():
    run = measured(standing=RunStatus("finished", "", 13, 18, 5), metrics={})
    busy = replace(run, account=replace(run.account, doubt="the machine was busy"))
    verdict, _ = closing_of_several({"ngram": busy, "suffix": busy}, "A")
    assert verdict.startswith(
        "Tokens per round, on 13 of 18 prompts, for lack of time, whatever else the machine did: "
    )


def test_several_drafters_are_ranked_and_their_outputs_counted_together():
    refuted = measured(account=account((2.5, 2.3, 2.8)), metrics={}, unexplained=1)
    verdict = (
        "Over plain decoding: ngram 1.99 times as fast (1.75 to 2.29), suffix 2.50 times as fast (2.30 to 2.80) "
        "(refuted); A."
    )
    for runs in (
        {"ngram": measured(), "suffix": refuted},
        {"suffix": replace(refuted, metrics=CONTROL), "ngram": measured()},
    ):
        doubt, *rest = closing_of_several(runs, "A")
        assert doubt.startswith("Not lossless: 1 of 216 outputs differ")
        assert rest == [verdict, NOISE, f"Of ngram: {COST[:1].lower()}{COST[1:]}"]


def test_rejections_without_a_residual_are_counted(make_rounds, stored_run):
    rounds = make_rounds({"a": [0, 1, 2]}, 2).assign(beta=[[1.0], [0.4, 1.0 - 1e-8], [0.9, 0.9]])

    def notes(greedy: bool, **params: str) -> list[str]:
        run = measured(0, 0, metrics={}, greedy=greedy)
        return run_notes(stored_run(both, "mixed", **params), run, {"skipped": {}, "count": 9})

    both = pd.concat([rounds, rounds.assign(method="suffix", beta=[[0.1]] * 3)], ignore_index=True)
    several = {"measurement__drafters": "[suffix]", "measurement__drafter_settings__suffix__drafter__name": "suffix"}
    (note,) = notes(False, drafter__name=rounds["method"][0], **several)
    assert note.startswith("Rounding: 2 of 2 rejections fell where drafter and target agree")
    both = rounds
    (note,) = notes(greedy=False)
    assert note.startswith("Rounding: 2 of 2 rejections fell where drafter and target agree")
    assert not notes(greedy=True)


def test_the_note_says_the_noise_and_when_the_control_fails():
    (note,) = control_notes(CONTROL)
    assert note.endswith("1.001 (0.995 to 1.006) over itself; what differs from 1 by less than 0.6% is noise.")
    apart = {"null/speedup": 1.06, "null/speedup.ci_low": 1.02, "null/speedup.ci_high": 1.1, "null/floor": 0.1}
    assert "leaves out 1" in control_notes(apart)[0]
    assert "too few prompts" in control_notes({"null/speedup": 1.06})[0]


# Reasons: each where it is one, in one order; one that explains all stands alone -----------------------

PASSES = {"4": [1.5, 1.6, 1.5, 1.4, 1.5], "5": [1.2, 1.3, 1.2, 1.2, 1.6]}  # the larger is faster in four of five passes
CALLS = {size: 4 * times for size, times in PASSES.items()}


@pytest.fixture
def reasons_of(make_account):
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
            arms[gamma] = ArmSummary(sums, metrics, account, {})
        rounds = pd.DataFrame({"prompt": prompts, "category": categories})
        work: Any = SimpleNamespace(primary_gamma=4, arms={4: rounds}, machine=BusyMachine(busy, 25, 5, {}, {}))
        medians = {size: {"ratio": sorted(times)[len(times) // 2]} for size, times in (calls or {}).items()}
        calibration = {"calls": calls, "t_n": medians} if calls else {}
        return reasons(Summary(work, arms), replace(FACTS, structure=structure), "mix", calibration)

    return build


def test_an_ordinary_run_needs_no_reason(reasons_of):
    assert reasons_of() == []
    assert reasons_of(tokens=(20, 10, 5, 5, 5)) == []  # 44% of the tokens
    assert reasons_of(categories=["mix"] * 5) == []  # prompts without a category have the name of their set


def test_where_nothing_was_gained_that_is_the_only_reason(reasons_of):
    all_of_them = {"tokens": (90, 1, 1, 1, 1), "categories": ["code"] * 5, "calls": CALLS}
    (silent,) = reasons_of(offered=0, accepted=0, per_round=1.0, **all_of_them)
    assert silent.startswith("No draft token was offered in any of 25 rounds: the drafter found nothing to propose")
    (none,) = reasons_of(accepted=0, per_round=1.0, **all_of_them)
    assert none.startswith("None of 45 draft tokens was accepted: every round committed one token, as plain decoding")
    (wasted,) = reasons_of(
        accepted=1, per_round=1.0
    )  # the last token of each text was accepted, in the place of its own
    assert wasted.startswith("None of 45 draft tokens saved a call of the target, though 5 were accepted: every round")


def test_machine_then_text_then_category_then_cost(reasons_of):
    machine, text, category, cost = reasons_of(tokens=(90, 1, 1, 1, 1), categories=["code"] * 5, calls=CALLS, busy=0.23)
    assert machine.startswith("The machine was busy with other work for 23% of the time; these rounds are left out")
    assert reasons_of(busy=0.01) == [], "hardly any of its time"
    assert text.startswith("One text of 5, a, holds 96% of all tokens") and text.endswith("speedups is 1.250.")
    assert category == "All prompts are of one category, code: nothing here speaks for others."
    assert cost.startswith("A call on 5 tokens takes less time here than one on 4 (1.20 and 1.50 of one on a single")
    assert cost.endswith("the speedup is 1.36 at gamma 3 and 1.70 at 4, with +0% tokens per round.")


@pytest.mark.parametrize(
    ("speedups", "says"),
    [
        ({"code": (2.9, 2.5), "text": (0.97, 0.9)}, "the speedup is 2.900 (2.500 to 3.100) in code, 0.970 in text."),
        ({"code": (2.9, 0.9), "text": (0.97, 0.9)}, ""),  # the gain is not sure
        ({"code": (2.9, 2.5), "text": (1.01, 0.9)}, ""),
    ],
)
def test_a_gain_of_one_category_alone(reasons_of, speedups, says):
    found = reasons_of(speedups=speedups)
    assert len(found) == bool(says) and all(reason.endswith(says) for reason in found)


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
def test_no_step_where_the_larger_call_is_not_surely_cheaper(reasons_of, changes):
    assert reasons_of(**changes) == []
