"""The sentences that close a run: each outcome has its own, at most four, and doubts come first."""

from dataclasses import replace
from typing import Any

import pytest
from fixtures.rounds_tables import FACTS

from specdec.analysis.account.gap_account import Account
from specdec.analysis.findings.sentences import (
    MeasuredRun,
    closing_of_several,
    closing_sentences,
    control_notes,
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
    noise = "from too few prompts to say how large the machine's noise is."
    assert closing_sentences(measured(metrics=control))[1].endswith(noise)


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
        ({"identical": 108}, "All 108 of 108 outputs are identical to plain decoding."),
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


def test_simulated_time_says_so():
    first, second, *_ = closing_sentences(measured(simulated=True, metrics={}))
    assert first.startswith("Speculation pays in simulated time: ")
    assert second.startswith("Time is simulated by a cost model")


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({"standing": RunStatus("finished", "", 13, 18, 5)}, "on the 13 of 18 prompts that there was time for."),
        ({"standing": RunStatus("killed", "", 7, 18)}, "on the 7 of 18 prompts that are done so far."),
        ({"structure": "rows", "structure_label": "5 rows of 4", "batch_size": 8}, "(5 rows of 4), 8 texts at a time."),
    ],
)
def test_the_part_of_the_prompts_and_the_shape_are_named(changes, end):
    assert closing_sentences(measured(**changes))[0].endswith(end)


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

    def notes(greedy: bool) -> list[str]:
        run = measured(0, 0, metrics={}, greedy=greedy)
        return run_notes(stored_run(rounds), run, {"skipped": {}, "count": 9})

    (note,) = notes(greedy=False)
    assert note.startswith("Rounding: 2 of 2 rejections fell where drafter and target agree")
    assert not notes(greedy=True)


def test_the_note_says_the_noise_and_when_the_control_fails():
    (note,) = control_notes(CONTROL)
    assert note.endswith("1.001 (0.995 to 1.006) over itself; what differs from 1 by less than 0.6% is noise.")
    apart = {"null/speedup": 1.06, "null/speedup.ci_low": 1.02, "null/speedup.ci_high": 1.1, "null/floor": 0.1}
    assert "leaves out 1" in control_notes(apart)[0]
    assert "too few prompts" in control_notes({"null/speedup": 1.06})[0]
