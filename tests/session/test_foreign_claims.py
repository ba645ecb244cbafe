"""The claim of a part of another package to be lossless is declared, until its combination passed a certificate."""

from typing import Any

import pytest
from fixtures.small_parts import composed

from specdec.drafters import drafters
from specdec.drafters.ngram import Ngram, NgramConfig
from specdec.plan.plan import plan
from specdec.session.kept_answers import claim_notes, record_passed


@pytest.fixture
def made(monkeypatch, tmp_path):
    """`made("drafter.order_max=3")` plans a run of `ngram` with other values."""
    monkeypatch.chdir(tmp_path)
    return lambda *overrides: plan(composed("+drafter=ngram", "+debug=tiny", *overrides))


@pytest.fixture
def foreign(monkeypatch):
    """`ngram` is a class of this test's module, which is no part of specdec."""

    class Foreign(Ngram):
        @classmethod
        def from_config(cls, config: NgramConfig, target: Any) -> Ngram:
            return Ngram(config, target)

    drafters.names()
    monkeypatch.setitem(drafters._classes, "ngram", Foreign)


def test_own_parts_need_no_note(made):
    assert claim_notes(made()) == ()


def test_a_foreign_claim_is_declared_until_it_passed(foreign, made, tmp_path):
    (note,) = claim_notes(made())
    assert note.startswith("The claim of drafter ngram (") and "is declared, not proven" in note
    record_passed(made(), tmp_path / "certificate.json")
    (note,) = claim_notes(made())
    assert "not proven" not in note and "this combination passed" in note
    other = made("drafter.order_max=3")
    assert "is declared, not proven" in claim_notes(other)[0], "of other values nothing was shown"


def test_a_drafter_beside_the_others_is_told_too(foreign):
    both = plan(composed("+drafter=recycling", "+debug=tiny", "measurement.drafters=[ngram]"))
    assert ["ngram" in note for note in claim_notes(both)] == [True]
