"""The claim of a part of another package to be lossless is declared, until its combination passed a certificate."""

from dataclasses import asdict, replace

import pytest
from fixtures.resumed_runs import composed

from specdec.drafters import drafters
from specdec.drafters.ngram import Ngram
from specdec.plan.beside import settled
from specdec.session.foreign_claims import claim_notes, record_passed


@pytest.fixture
def config(monkeypatch, tmp_path):

    monkeypatch.chdir(tmp_path)
    return composed("+drafter=ngram")


@pytest.fixture
def foreign(monkeypatch):
    """`ngram` is a class of this test's module, which is no part of specdec."""

    class Foreign(Ngram):
        pass

    drafters.names()
    monkeypatch.setitem(drafters._classes, "ngram", Foreign)


def test_own_parts_need_no_note(config):
    assert claim_notes(config) == ()


def test_a_foreign_claim_is_declared_until_it_passed(foreign, config, tmp_path):
    (note,) = claim_notes(config)
    assert note.startswith("The claim of drafter ngram (") and "is declared, not proven" in note
    record_passed(config, tmp_path / "certificate.json")
    (note,) = claim_notes(config)
    assert "not proven" not in note and "this combination passed" in note
    other = replace(config, drafter={**config.drafter, "order_max": 3})
    assert "is declared, not proven" in claim_notes(other)[0], "of other values nothing was shown"


def test_a_drafter_beside_the_others_is_told_too(foreign, config):
    measurement = replace(config.measurement, drafters=["ngram"])
    none = {"name": "recycling", "k": 4, "persist": False}
    both = settled(replace(config, drafter=none, measurement=measurement))
    assert ["ngram" in note for note in claim_notes(both)] == [True]
    assert asdict(both)["drafter"]["name"] == "recycling"
