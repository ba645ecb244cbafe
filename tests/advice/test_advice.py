"""The arithmetic of advice against worked figures and by hand; rounds found by replay against live decoding."""

import json
import shlex
from collections import Counter
from dataclasses import asdict, replace
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console

from specdec.advice.advice import (
    Advice,
    RoundCost,
    ideals,
    judge,
    predict,
    recommended,
)
from specdec.advice.advisor import show
from specdec.analysis.intervals import Interval
from specdec.clock import CpuClock
from specdec.decode import generate
from specdec.drafters import drafters
from specdec.environment import cpu
from specdec.records import Request
from specdec.replay.expected_rounds import Agreement, Starts, agreement, expected_walk, rounds_along
from specdec.sampling import generator_for
from specdec.session.advice_key import key_of
from specdec.structures import structures
from specdec.targets.causal import Causal
from specdec.theory.capped_geometric import tokens_per_round
from specdec.theory.dependence import replay_rounds
from specdec.verifiers import verifiers

PROMPT = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5)
# Figures of theory.md 8.1: D = 3, T_v = 22.5, T_o = 1.9, t_1 = 20, t_AR = 21 ms; tau = 3.30 at gamma 5.
COST = RoundCost(draft=3 / 20, verify=22.5 / 20, overhead=1.9 / 20, full_verify=22.5 / 20, baseline=21 / 20)


def prediction(tau, cost, gamma=5, low=None, offered=None):
    speedup = cost.speedup(tau)
    bounds = (0.999 * speedup, 1.001 * speedup) if low is None else (low, 2 * speedup - low)
    return predict(gamma, Interval(tau), Interval(speedup, *bounds), cost, offered or {gamma: 10.0})


def test_the_speedup_is_that_of_the_account():
    assert COST.speedup(3.30) == pytest.approx(2.529197, abs=5e-7)


def test_at_break_even_the_speedup_is_one():
    found = prediction(3.30, COST)
    assert found.pays_from_tokens == pytest.approx(27.4 / 21)
    assert COST.speedup(found.pays_from_tokens) == pytest.approx(1)
    # 3.30 x 21 ms per round pay for verification, overhead and five steps of c x 20 ms.
    assert found.pays_below_c == pytest.approx((3.30 * 21 - 22.5 - 1.9) / (5 * 20))
    assert replace(COST, draft=5 * found.pays_below_c).speedup(3.30) == pytest.approx(1)
    assert found.pays_from_alpha is not None
    assert tokens_per_round(found.pays_from_alpha, 5) == pytest.approx(27.4 / 21)


def test_shares_of_rounds_add_up():
    assert prediction(3.30, COST, offered={5: 30.0, 0: 10.0}).offered == {0: 0.25, 5: 0.75}


def test_a_drafter_that_cannot_pay_has_no_c():
    assert prediction(1.05, COST).pays_below_c is None


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


def test_no_term_alone_may_be_to_blame():
    cost = replace(CHEAP, draft=9.0, verify=9.0, full_verify=9.0)
    assert "no term alone is to blame" in judge([prediction(1.5, cost)], "x on y")[2]


def test_the_best_gamma_and_how_sure_it_is():
    short, long = prediction(1.5, CHEAP, gamma=1), prediction(2.5, CHEAP, gamma=4, low=1.2)
    best, guilty, verdict = judge([short, long], "x on y")
    assert best.gamma == 4 and guilty is None and verdict.startswith("Speculate: x on y at gamma 4")


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
    assert judge([fast, long], "x on y")[0].gamma == 4


def test_the_key_ignores_the_order_of_keys_only():
    assert key_of({"a": 1, "b": [1, 2]}) == key_of({"b": [1, 2], "a": 1})
    assert len({key_of({"a": 1}), key_of({"a": 2}), key_of({"b": 1})}) == 3


def along(m, proposed=None):
    return Agreement(np.array(proposed or [True] * len(m)), np.array(m), np.array(m))


def walk_of(along, gamma, limit):
    return expected_walk(Starts.of_positions(along, gamma), limit)


@pytest.mark.parametrize(("gamma", "rounds"), [(1, 3.298), (2, 3.14), (3, 2.698), (10, 2.6)])
def test_expected_rounds_of_theory(gamma, rounds):
    """The text of theory.md 4.2."""
    assert walk_of(along([0.9, 0.5, 1, 0.2, 0.8, 0.7]), gamma, 6).rounds == pytest.approx(rounds)


@pytest.mark.parametrize("gamma", [1, 3, 8])
def test_the_walk_forwards_has_the_rounds_of_the_recursion_backwards(gamma):
    m = np.random.default_rng(5).uniform(size=40) ** 0.3
    walk = walk_of(along(m.tolist()), gamma, 40)
    assert walk.rounds == pytest.approx(replay_rounds(m, gamma), rel=1e-12)
    assert set(walk.offered) <= set(range(gamma + 1)) and walk.draft_s is None


def test_offers_of_a_walk_by_hand():
    # m = 1 everywhere, five tokens, limit 5, gamma 2: rounds begin at 0 (offers 2) and 3 (offers 1, one is left after).
    assert walk_of(along([1.0] * 5), 2, 5).offered == {2: 1.0, 1: 1.0}
    # Nothing is proposed at 0, and at 1 only one token before the gap at 2.
    gaps = walk_of(along([0.0, 1.0, 0.0, 1.0, 1.0], [False, True, False, True, True]), 2, 5)
    assert gaps.offered == {0: 1.0, 1: 2.0}


@pytest.mark.parametrize("gamma", [1, 2, 5])
@pytest.mark.parametrize("name", ["ngram", "oracle"])
def test_offers_of_a_replay_are_those_of_live_decoding(tiny_model, sampling, group_values, name, gamma):
    target = Causal(tiny_model("llama"), sampling(temperature=0.0))
    chain = structures.build({"name": "chain", "gamma": gamma})

    def request(reference):
        return Request(PROMPT, 60, draft_generator=generator_for(0, "p", "draft"), reference=reference)

    def decode(drafter, reference=None):
        return generate(
            target=target,
            drafter=drafter,
            verifier=verifiers.build({"name": "greedy"}),
            structure=chain,
            request=request(reference),
            clock=CpuClock(),
        )

    text = decode(drafters.build({"name": "none"}, target=target)).tokens
    drafter = drafters.build(group_values("drafter", name), target=target)
    live = Counter(item.tree.depth for item in decode(drafter, text).rounds)
    if name == "oracle":
        walk = walk_of(agreement(drafter, target, chain, text, request(text)), gamma, 60)
    else:
        walk = rounds_along(drafter, target, chain, text, request(text), CpuClock())
        assert walk.draft_s is not None and walk.draft_s > 0
    assert {size: count for size, count in walk.offered.items() if count} == pytest.approx(dict(live))


def test_predictions_survive_json():
    found = prediction(3.30, COST, low=2.0, offered={0: 1.0, 5: 3.0})
    found = replace(found, tokens_per_round=Interval(3.30, 3.0, 3.5))
    from pydantic import TypeAdapter

    assert TypeAdapter(type(found)).validate_json(json.dumps(asdict(found))) == found


def test_agreement_of_a_sampled_text_gives_fractional_rounds(table):
    """Position-wise under sampling: rounds are expectations, between every token its own round and full rounds."""
    target = table([[0.1, 0.6, 0.3], [0.2, 0.2, 0.6], [0.5, 0.25, 0.25]], temperature=1.0)
    q = torch.full((4, 3), 1 / 3, dtype=torch.float64)
    p = target._p
    text = (1, 2, 1, 0)
    m = [min(1.0, float(q[0, x] / p[before, x])) for before, x in zip((0, 1, 2, 1), text, strict=True)]
    walk = walk_of(along(m), 2, 4)
    assert 2 < walk.rounds < 4 and walk.rounds == pytest.approx(replay_rounds(m, 2))


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
    return recommended(parts, predictions)


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
    place = next(number for number, line in enumerate(lines) if line.startswith("To serve it: Speculate: "))
    assert lines[place].endswith(" Starting points, not measured there:")
    assert lines[place + 1 :] == [f"{each.engine}: {each.command}" for each in found.configurations]
