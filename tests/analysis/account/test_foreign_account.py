"""The account of imported rounds: factors that multiply out, and data in which only one of them is at work."""

from math import prod
from pathlib import Path

import numpy as np
import pytest
from fixtures.imported_folders import folder_of

from specdec.analysis.account.gap_account import gap_account
from specdec.analysis.account.run_account import foreign_intervals, foreign_sums
from specdec.analysis.read import imported as of_a_file
from specdec.analysis.read.imported import PositionText, imported


def runs(bits, longest=10**6):
    """Return the lengths of a drafter that is right where the bits are 1, however deep in a draft."""
    lengths, ahead = [], 0
    for bit in reversed(bits):
        ahead = ahead + 1 if bit else 0
        lengths.append(min(ahead, longest) + 1)
    return lengths[::-1]


def data_set(*texts, gamma=3):
    parts = [PositionText(f"p{i}", "", 0, np.array(lengths), None, False) for i, lengths in enumerate(texts)]
    return imported(Path("trace.jsonl"), "accepted_lengths", gamma, parts, ())


@pytest.fixture
def accounts(tmp_path):
    def at(source, *gammas):
        tables = foreign_sums(folder_of(source, tmp_path))
        return {gamma: gap_account(tables[gamma], gamma, replicates=20) for gamma in gammas}

    return at


def test_a_text_by_hand(accounts):
    """Nine of thirteen positions agree; the same walk by agreement and by lengths, so depth does nothing."""
    agreement = [1, 1, 0, 1, 1, 1, 0, 0, 1, 1, 1, 1, 0]  # theory.md 4.3
    made = accounts(data_set(runs(agreement)), 1, 2, 3, 4)
    for (gamma, found), rounds in zip(made.items(), (8, 6, 5, 4), strict=True):
        omega = sum((9 / 13) ** k for k in range(gamma + 1))
        assert found.alpha == pytest.approx(9 / 13)
        assert found.value("tokens_per_round") == pytest.approx(13 / rounds)
        assert found.value("tokens_error") == pytest.approx(omega / (13 / rounds) - 1)
        assert found.value("depth") == pytest.approx(1)
        assert found.value("texts") == pytest.approx(1)  # there is one text only


def bits(generator, texts, size, rise=0.0):
    """Agreement of texts with their own alphas; with `rise` a chain that prefers to go on as before."""
    made = []
    for alpha in generator.uniform(0.3, 0.9, texts):
        text, keep = generator.random(size) < alpha, generator.random(size) < rise
        for place in np.flatnonzero(keep[1:]) + 1:
            text[place] = text[place - 1]
        made.append(text.tolist())
    return made


def test_the_factors_multiply_out(accounts):
    generator = np.random.default_rng(0)
    texts = [runs(text, longest=7) for text in bits(generator, 6, 150, rise=0.5)]
    for found in accounts(data_set(*texts), 1, 3, 7).values():
        assert found.product == pytest.approx(found.value("tokens_per_round"), rel=1e-12)
        parts = [found.factors[name] for name in ("texts", "along", "depth")]
        assert prod(parts) == pytest.approx(found.value("dependence"), rel=1e-12)


@pytest.mark.slow
def test_each_part_answers_to_its_own_cause(accounts):
    generator = np.random.default_rng(1)
    independent, sticky = bits(generator, 40, 400), bits(generator, 40, 400, rise=0.7)
    alike = accounts(data_set(*(runs(text, longest=3) for text in independent)), 3)[3].factors
    assert alike["texts"] < 0.98 and alike["depth"] == 1 and alike["along"] == pytest.approx(1, abs=0.01)
    sticky = accounts(data_set(*(runs(text, longest=3) for text in sticky)), 3)[3].factors
    assert sticky["along"] < 0.95 and sticky["depth"] == 1
    # Only first tokens are ever right: agreement is as before, what is lost is depth; ends of texts apart.
    shallow = accounts(data_set(*(runs(text, longest=1) for text in independent)), 3)[3].factors
    assert shallow["along"] == pytest.approx(alike["along"], abs=1e-3) and shallow["depth"] < 0.9


def test_the_mean_over_requests_counts_every_text_once(tmp_path):
    source = data_set(runs([1] * 40, longest=3), runs([0] * 4))
    table = foreign_sums(folder_of(source, tmp_path))[3]
    assert table["tokens"].sum() / table["rounds"].sum() == pytest.approx(44 / 14)
    assert foreign_intervals(table, 3, 10)["requests_mean"].estimate == pytest.approx((4 + 1) / 2)


def test_very_long_drafts_are_shown_as_far_as_gammas_go(tmp_path, monkeypatch):
    """Up to a number that a page has room for, or to the gamma that was given if that is larger."""
    monkeypatch.setattr(of_a_file, "SHOWN", 4)
    for given in (4, 6):
        arms = folder_of(data_set(runs([1] * 9), gamma=given), tmp_path / str(given)).arms()
        assert max(gamma for _, gamma in arms) == given
