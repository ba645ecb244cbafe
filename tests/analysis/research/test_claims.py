"""Verdicts on claims: by hand, and on the committed results."""

from dataclasses import replace
from typing import Any

import pytest

from specdec.analysis.intervals import Interval
from specdec.analysis.research import claims


@pytest.fixture(scope="module")
def found() -> claims.ClaimEvidence:
    return claims.evidence()


def test_a_direction_needs_an_interval_beyond_the_threshold():
    for low, high, verdict in ((0.1, 0.3, claims.SAME), (-0.3, -0.1, claims.DIFFERENT), (-0.1, 0.1, claims.OPEN)):
        assert claims.direction(Interval((low + high) / 2, low, high)) == verdict
        assert claims.direction(Interval((low + high) / 2 + 1, low + 1, high + 1), 1.0) == verdict


def test_a_size_is_the_same_where_the_interval_reaches_the_published_range():
    bounds = ((1.1, 1.4), (1.5, 2.2), (2.5, 2.6), (3.6, 3.9), (0.9, 1.1), (0.5, 0.8))
    found = [claims.size(Interval((low + high) / 2, low, high), 2.0, 3.5, 1.0) for low, high in bounds]
    assert found == [claims.SMALLER, claims.SAME, claims.SAME, claims.LARGER, claims.OPEN, claims.DIFFERENT]


def test_every_claim_is_answered_in_words_that_a_table_can_hold(found):
    answers = claims.claims(found)
    assert len(answers) == len({each.claim for each in answers}) == 40
    verdicts = {claims.SAME, claims.SMALLER, claims.LARGER, claims.DIFFERENT, claims.OPEN}
    for each in answers:
        assert each.verdict in verdicts, each
        words = vars(each).values()
        assert all(words) and not any("|" in text or "\n" in text or "nan" in text.split() for text in words), each
    papers = {claims.LEVIATHAN, claims.CHEN, claims.STERN, claims.MEDUSA, claims.GROUNDED, claims.NGRAMMYS}
    assert {each.paper for each in answers} == papers
    section = claims.claims_section(found)
    assert f"Of {len(answers)} claims: " in section.text[0] and len(section.tables[0][1]) == len(answers)
    with pytest.raises(ValueError, match="no alpha is printed"):
        found.values("2211.17192", "Table 9", "alpha")


def answered(answers: Any, found: claims.ClaimEvidence, words: str, run: str, **changed: Any) -> claims.Claim:
    basis = replace(found, runs={**found.runs, run: {**found.runs[run], **changed}})
    return next(each for each in answers(basis) if words in each.claim)


@pytest.mark.parametrize(
    ("short", "long", "verdict"),
    [
        ([2.0, 2.2], [2.3, 2.5], claims.SAME),
        ([2.0, 2.4], [2.3, 2.5], claims.OPEN),  # the mean is larger, but the passes overlap
        ([2.3, 2.5], [2.0, 2.2], claims.DIFFERENT),
    ],
)
def test_calls_behind_two_contexts_are_told_apart_by_the_ranges_of_their_passes(found, short, long, verdict):
    times = {"1000": long, "500": [2.3, 2.3], "50": short}
    answer = answered(claims._transition, found, "Behind a longer context", "phase_transition", slowdowns=times)
    assert answer.verdict == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(-0.004, 0.009, "SAME"), (0.02, 0.06, "DIFFERENT"), (-0.06, -0.02, "DIFFERENT"), (0.0, 0.03, "OPEN")],
)
def test_no_gain_from_half_the_lenience_is_told_within_the_printed_decimals(found, low, high, verdict):
    bounds = {"": (low + high) / 2, ".ci_low": low, ".ci_high": high}
    metrics = {f"lenience/rise.small_model.greedy.0.5{end}": value for end, value in bounds.items()}
    metrics = found.runs["lenience"]["metrics"] | metrics
    answer = answered(claims._lenience, found, "A lenience of 0.5", "lenience", metrics=metrics)
    assert answer.verdict == getattr(claims, verdict)
