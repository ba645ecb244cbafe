"""The costs of a round as advice foretells them, from calibrations and plain rounds that are known."""

from types import SimpleNamespace

import pytest

from specdec.advice import advisor
from specdec.structures import structures
from specdec.timing.calls import Calibration


def test_foretold_quantities_are_those_of_the_account():
    """theory.md 8.1: 3.30 tokens per round, D 3, T_v 22.5, T_o 1.9, t1 20, t_AR 21 ms. T_o holds the loop of the
    baseline, 1 ms, and 0.9 ms for accepting and committing drafts. Sums over 100 rounds, costs over t1.
    """
    sums = {"committed": 50.0, "verify_s": 1.0, "round_s": 1.05, "tokens": 330.0, "rounds": 100.0}
    costs = {"draft": 100 * 3 / 20, "verify": 100 * 22.5 / 20, "accept": 100 * 0.6 / 20, "commit": 100 * 0.3 / 20}
    found = advisor._statistic(sums | costs)
    assert found["baseline"] == pytest.approx(1.05) and found["tokens_per_round"] == pytest.approx(3.30)
    assert [found[name] for name in "gvo"] == pytest.approx([0.15, 1.125, 0.095])
    assert found["speedup"] == pytest.approx(2.529197, abs=5e-7)


def test_costs_are_over_the_plain_call_of_the_same_calibration():
    """Two calibrations, the second on a machine twice as slow: the ratios are the same, and their means too."""
    once = Calibration(context=5, calls={1: [2.0], 5: [3.0]}, draft=[0.5], drafts={4: [1.0, 1.0, 9.0]})
    slow = Calibration(context=5, calls={1: [4.0], 5: [6.0]}, draft=[1.0], drafts={4: [2.0]})
    one = object.__new__(advisor._Advisor)
    one._calibrations, one._accepts = [once, slow], [{0: 0.5, 4: 0.75}, {0: 1.0, 4: 1.5}]
    one._shapes = {4: structures.build({"name": "chain", "gamma": 4})}
    costs = one._costs()
    assert costs.verify == {0: 1.0, 4: 1.5}  # a draft of four nodes is a call on five tokens
    assert costs.draft == {0: 0.0, 4: 0.5} and costs.accept == {0: 0.0, 4: 0.125}
    assert costs.of(costs.verify, 2) == 1.25


def test_a_round_is_charged_what_it_offered():
    """Two rounds offer four nodes and one none: costs add up over rounds, and texts of one prompt are one line."""
    one = object.__new__(advisor._Advisor)
    walk = SimpleNamespace(offered={4: 2.0, 0: 1.0}, rounds=3.0, draft_s=None, commit_s=None)
    one._walks = [(SimpleNamespace(id="p", generated=range(9)), {4: walk})] * 2
    costs = advisor.Costs(verify={0: 1.0, 4: 1.5}, draft={0: 0.0, 4: 0.5}, accept={0: 0.0, 4: 0.125})
    (line,) = one._table(4, costs, 0.02).to_dict("records")
    assert line == {"tokens": 18, "rounds": 6.0, "verify": 8.0, "draft": 2.0, "accept": 0.5, "commit": 0.0}
