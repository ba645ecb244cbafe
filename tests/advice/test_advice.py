"""The arithmetic of advice and of the costs behind it, against worked figures and by hand."""

import json
import shlex
from dataclasses import replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from specdec.advice import advisor
from specdec.advice.advice import Advice, RoundCost, ideals, judge, predict, recommended
from specdec.advice.advisor import show
from specdec.analysis.intervals import Interval
from specdec.environment import cpu
from specdec.session.kept_answers import key_of
from specdec.structures import structures
from specdec.theory.capped_geometric import tokens_per_round
from specdec.timing.calls import Calibration
from specdec.verifiers import verifiers

# Figures of theory.md 8.1: D = 3, T_v = 22.5, T_o = 1.9, t_1 = 20, t_AR = 21 ms; tau = 3.30 at gamma 5.
COST = RoundCost(draft=3 / 20, verify=22.5 / 20, overhead=1.9 / 20, full_verify=22.5 / 20, baseline=21 / 20)


def prediction(tau, cost, gamma=5, low=None, offered=None):
    speedup = cost.speedup(tau)
    bounds = (0.999 * speedup, 1.001 * speedup) if low is None else (low, 2 * speedup - low)
    return predict(gamma, Interval(tau), Interval(speedup, *bounds), cost, offered or {gamma: 10.0})


def test_the_speedup_is_that_of_the_account_and_one_at_break_even():
    assert COST.speedup(3.30) == pytest.approx(2.529197, abs=5e-7)
    found = prediction(3.30, COST)
    assert found.pays_from_tokens == pytest.approx(27.4 / 21)
    assert COST.speedup(found.pays_from_tokens) == pytest.approx(1)
    # 3.30 x 21 ms per round pay for verification, overhead and five steps of c x 20 ms.
    assert found.pays_below_c == pytest.approx((3.30 * 21 - 22.5 - 1.9) / (5 * 20))
    assert replace(COST, draft=5 * found.pays_below_c).speedup(3.30) == pytest.approx(1)
    assert found.pays_from_alpha is not None
    assert tokens_per_round(found.pays_from_alpha, 5) == pytest.approx(27.4 / 21)
    assert prediction(1.05, COST).pays_below_c is None, "a drafter that cannot pay has no c"
    assert prediction(3.30, COST, offered={5: 30.0, 0: 10.0}).offered == {0: 0.25, 5: 0.75}


CHEAP = RoundCost(draft=0.05, verify=1.0, overhead=0.0, full_verify=1.0, baseline=1.0)


@pytest.mark.parametrize(
    ("tau", "cost", "blame"),
    [
        (1.01, CHEAP, "acceptance"),
        (3.0, replace(CHEAP, draft=9.0), "draft cost"),
        (3.0, replace(CHEAP, verify=9.0, full_verify=9.0), "verification cost"),
        (3.0, replace(CHEAP, overhead=9.0), "overhead"),
    ],
)
def test_the_guilty_term_is_the_one_whose_ideal_gains_most(tau, cost, blame):
    best, guilty, verdict = judge([prediction(tau, cost)], "x on y")
    assert best.speedup.estimate <= 1 and guilty == blame
    assert verdict.startswith("Do not speculate: ") and f"{blame} is to blame" in verdict
    assert ideals(best)[blame] == max(ideals(best).values()) > 1


def test_acceptance_at_its_ideal_pays_for_full_rounds():
    """A drafter that rarely proposes: full rounds would verify gamma + 1 tokens each."""
    rare = prediction(1.05, replace(CHEAP, draft=0.0, verify=1.1, full_verify=2.0), gamma=3)
    assert ideals(rare)["acceptance"] == pytest.approx(4 / 2.0)
    cost = replace(CHEAP, draft=9.0, verify=9.0, full_verify=9.0)
    assert "no term alone is to blame" in judge([prediction(1.5, cost)], "x on y")[2]


@pytest.mark.parametrize(
    ("speedup", "doubt"),
    [
        (Interval(2.38, 0.8, 3.0), "the interval of its speedup contains 1"),
        (Interval(0.9, 0.8, 1.1), "the interval of its speedup contains 1"),
        (Interval(0.86, prompts=3), "3 prompts are too few for a verdict, which needs 5"),
        (Interval(2.38, prompts=3), "3 prompts are too few for a verdict, which needs 5"),
    ],
)
def test_advice_settles_no_more_than_a_run_does(speedup, doubt):
    best, guilty, verdict = judge([replace(prediction(2.5, CHEAP, gamma=4), speedup=speedup)], "x on y")
    assert best.gamma == 4 and guilty is None and "\n" not in verdict
    assert verdict.startswith(f"Whether speculation pays is not settled ({doubt}): x on y at gamma 4 is predicted")


def test_the_best_gamma_is_the_fastest_and_not_the_longest():
    fast, long = prediction(2.5, CHEAP, gamma=4), prediction(3.0, replace(CHEAP, draft=0.5), gamma=8)
    assert fast.speedup.estimate > long.speedup.estimate
    best, guilty, verdict = judge([fast, long], "x on y")
    assert best.gamma == 4 and guilty is None and verdict.startswith("Speculate: x on y at gamma 4")


def test_the_key_ignores_the_order_of_keys_only():
    assert key_of({"a": 1, "b": [1, 2]}) == key_of({"b": [1, 2], "a": 1})
    assert len({key_of({"a": 1}), key_of({"a": 2}), key_of({"b": 1})}) == 3


def small_model_advice(structure, offered, verifier="speculative_sampling"):
    """Return what is recommended for a draft model that is predicted to pay at gamma 2, and to pay more at gamma 4."""
    config = dict(
        target={"name": "causal", "model": "/models/my target"},
        drafter={"name": "small_model", "model": "org/draft", "drafts": "sampled", "translate": False},
        structure=structure,
        verifier={"name": verifier},
        sampling={"temperature": 0.0},
        measurement={"batch_size": 1},
    )
    shape = structures.build(structure)
    drafter = SimpleNamespace(describe=lambda: {"dtype": "float32"})
    primary = SimpleNamespace(structure=shape, drafter=drafter, verifier=verifiers.build({"name": verifier}))
    plan = SimpleNamespace(config=config)
    parts = SimpleNamespace(plan=plan, primary=primary, target=SimpleNamespace(device=torch.device("cpu")))
    predictions = [
        replace(prediction(3.30, COST, gamma=gamma, offered=offered), speedup=Interval(speedup, speedup - 0.1, 9.0))
        for gamma, speedup in ((2, 1.2), (4, 1.5))
    ]
    return recommended(parts, predictions, {1: 1.0}, 10.0, 10.0)


def test_advice_recommends_a_configuration_of_the_best_gamma():
    found = small_model_advice({"name": "chain", "gamma": 4}, {4: 9.0, 0: 1.0})
    assert found.verdict == (
        "Speculate: small_model with drafts of 4 tokens, the best of 2 depths, is predicted to be 1.500 (1.400 to "
        "9.000) times as fast as plain decoding."
    )
    program, serve, model, flag, keys = shlex.split(found.configurations[0].command)
    assert (program, serve, model, flag) == ("vllm", "serve", "/models/my target", "--speculative-config")
    assert json.loads(keys) == {"method": "draft_model", "model": "org/draft", "num_speculative_tokens": 4}
    assert cpu()["model"] in found.remarks[0]


def test_advice_on_a_tree_counts_its_nodes():
    tree = {"name": "dynamic", "nodes": 12, "depth": 4, "branching": 3, "beam": 3}
    sglang = small_model_advice(tree, {12: 9.0, 5: 1.0}).configurations[1]
    assert "--speculative-eagle-topk 3 --speculative-num-draft-tokens 13" in sglang.command


def test_a_terminal_shows_one_line_for_each_engine():
    found = small_model_advice({"name": "chain", "gamma": 4}, {4: 1.0})
    console = Console(file=StringIO(), width=60)
    given = Advice("k", {}, "a drafter", "start", "baseline", 2, 9, None, 1.0, 5, None, "A verdict.", [], [])
    show(replace(given, predictions=[prediction(3.3, COST)]), found, console, Path("folder"))
    lines = console.file.getvalue().splitlines()
    place = next(number for number, line in enumerate(lines) if line.startswith("To serve it: For one request"))
    assert lines[place].endswith(" Starting points, not measured there:")
    assert lines[place + 1 :] == [f"{each.engine}: {each.command}" for each in found.configurations]


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
    assert costs["verify"] == {0: 1.0, 4: 1.5}  # a draft of four nodes is a call on five tokens
    assert costs["draft"] == {0: 0.0, 4: 0.5} and costs["accept"] == {0: 0.0, 4: 0.125}
    assert advisor._interpolated(costs["verify"], 2) == 1.25


def test_a_round_is_charged_what_it_offered():
    """Two rounds offer four nodes and one none: costs add up over rounds, and texts of one prompt are one line."""
    one = object.__new__(advisor._Advisor)
    walk = SimpleNamespace(offered={4: 2.0, 0: 1.0}, rounds=3.0, draft_s=None, commit_s=None)
    one._walks = [(SimpleNamespace(id="p", generated=range(9)), {4: walk})] * 2
    costs = {"verify": {0: 1.0, 4: 1.5}, "draft": {0: 0.0, 4: 0.5}, "accept": {0: 0.0, 4: 0.125}}
    (line,) = one._table(4, costs, 0.02).to_dict("records")
    assert line == {"tokens": 18, "rounds": 6.0, "verify": 8.0, "draft": 2.0, "accept": 0.5, "commit": 0.0}
