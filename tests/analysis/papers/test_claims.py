"""Verdicts on claims: by hand, and on the committed results."""

import pytest

from specdec.analysis.intervals import Interval
from specdec.analysis.papers import claims


@pytest.fixture(scope="module")
def found() -> claims.Evidence:
    return claims.evidence()


@pytest.mark.parametrize(
    ("low", "high", "verdict"), [(0.1, 0.3, claims.SAME), (-0.3, -0.1, claims.DIFFERENT), (-0.1, 0.1, claims.OPEN)]
)
def test_a_direction_needs_an_interval_beyond_the_threshold(low, high, verdict):
    assert claims.direction(Interval((low + high) / 2, low, high)) == verdict
    assert claims.direction(Interval((low + high) / 2 + 1, low + 1, high + 1), 1.0) == verdict


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.1, 1.4, claims.SMALLER),
        (1.5, 2.2, claims.SAME),
        (2.5, 2.6, claims.SAME),
        (3.6, 3.9, claims.LARGER),
        (0.9, 1.1, claims.OPEN),
        (0.5, 0.8, claims.DIFFERENT),
    ],
)
def test_a_size_is_the_same_where_the_interval_reaches_the_published_range(low, high, verdict):
    assert claims.size(Interval((low + high) / 2, low, high), 2.0, 3.5, 1.0) == verdict


def test_every_claim_is_answered_in_words_that_a_table_can_hold(found):
    answers = claims.claims(found)
    assert len(answers) == len(claims.ANSWERS) == len({each.claim for each in answers})
    verdicts = {claims.SAME, claims.SMALLER, claims.LARGER, claims.DIFFERENT, claims.OPEN}
    for each in answers:
        assert each.verdict in verdicts, each
        words = vars(each).values()
        assert all(words) and not any("|" in text or "\n" in text or "nan" in text.split() for text in words), each
    assert {each.paper for each in answers} == {
        claims.LEVIATHAN, claims.CHEN, claims.STERN, claims.MEDUSA, claims.GROUNDED, claims.NGRAMMYS,
    }  # fmt: skip


def test_published_values_are_read_and_not_written_down(found):
    """Known from the papers' tables."""
    assert list(found.values("2211.17192", "Table 2", "speedup_measured", drafter="T5-small (77M)").round(1)) != []
    block = found.values("1811.03115", "Table 1", "tokens_per_round", drafter="blockwise heads, k=4, regular")
    assert list(block) == [1.73]
    with pytest.raises(ValueError, match="no alpha is printed"):
        found.values("2211.17192", "Table 9", "alpha")


def test_the_section_counts_its_verdicts(found):
    section = claims.claims_section(found)
    ((_, table),) = section.tables
    assert f"Of {len(table)} claims: " in section.text[0]
    assert claims.claims_markdown(found).count("\n") == len(table) + 1
