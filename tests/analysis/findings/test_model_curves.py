"""Curves of models over gamma: each is fitted to what its name promises, has intervals, and is its headline metric."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from specdec.analysis.acceptance.prediction_section import held_out
from specdec.analysis.account.run_account import SharedWork
from specdec.analysis.arms import Arms
from specdec.analysis.findings.model_curves import model_curves, model_metrics
from specdec.analysis.findings.summary import summarise

FACTS = SimpleNamespace(simulated=False, predicted={2: 1.7})
EMPTY = pd.DataFrame(columns=["kind", "gamma", "prompt", "tokens", "rounds"])
TIMES = {"draft_s": 0.0, "verify_s": 0.02, "accept_s": 0.0, "commit_s": 0.0, "round_s": 0.02}


@pytest.fixture
def summary_of(make_rounds, make_generations):
    """`summary_of(arms)` summarises {gamma: rounds} beside a baseline that wrote the same texts; with the rounds."""

    def build(arms):
        first = next(iter(arms.values()))
        tokens = first.groupby("prompt")["committed"].sum()
        plain = make_rounds({name: [0] * int(n) for name, n in tokens.items()}, 0, method="baseline", durations=TIMES)
        rounds = pd.concat([*arms.values(), plain], ignore_index=True)
        return summarise(SharedWork.of(Arms.of(rounds), 2), make_generations(rounds), 200, 9), rounds

    return build


@pytest.fixture
def two_prompts(make_rounds):
    """One prompt of 30 tokens on which every draft passes, one of 60 on which none does, at gamma 2 and 1."""
    return {
        2: make_rounds({"easy": [2] * 10, "hard": [0] * 60}, 2),
        1: make_rounds({"easy": [1] * 15, "hard": [0] * 60}, 1),
    }


def test_the_position_model_has_not_seen_what_it_predicts(two_prompts, summary_of):
    """Fitted to the hard prompt it takes 30 rounds for the easy one's text, fitted to the easy one 60 / 3 for the hard
    one's; fitted to both, as the measurement is made of both, it would nearly repeat the measured 90 / 70.
    """
    summary, rounds = summary_of(two_prompts)
    curves = model_curves(summary, held_out(Arms.of(rounds), None, None, 200), EMPTY, FACTS, 200, 0)
    assert curves["curve/measured"] == pytest.approx({2: 90 / 70, 1: 90 / 75})
    assert curves["curve/position"] == pytest.approx({2: 90 / (30 + 20), 1: 90 / (30 + 30)})
    step = 1 + summary.arms[2].metrics["cost/g"]
    assert curves["curve/speedup/position"][2] == pytest.approx(1.8 / step)
    assert "curve/replay" not in curves and "curve/position.ci_low" not in curves  # two prompts cannot be resampled


def test_replay_is_of_the_baselines_texts_and_the_accounts_of_the_drafters_own(two_prompts, summary_of):
    summary, rounds = summary_of(two_prompts)
    lines = [
        *(("own", 2, "easy", 30, 10), ("own", 2, "hard", 60, 60)),
        *(("baseline", 2, "easy", 30, 12), ("baseline", 2, "hard", 60, 48)),
    ]
    replay = pd.DataFrame(lines, columns=list(EMPTY))
    prediction = held_out(Arms.of(rounds), None, replay[replay["kind"] == "baseline"], 200)
    curves = model_curves(summary, prediction, replay, FACTS, 400, 0)
    assert curves["curve/replay"] == pytest.approx({2: 90 / 60})
    assert "curve/replay.ci_low" not in curves  # two prompts have no interval
    assert curves["curve/speedup/predicted"] == {2: 1.7}
    simulated = SimpleNamespace(simulated=True, predicted={})
    assert "curve/replay" not in model_curves(summary, prediction, replay, simulated, 200, 0)


def test_every_curve_has_its_interval_and_its_headline_metric(simulate, summary_of):
    generator = np.random.default_rng(1)
    arms = {gamma: simulate(generator.beta(6, 2, size=8), 12, gamma, generator) for gamma in (2, 1, 4)}
    summary, rounds = summary_of(arms)
    prediction = held_out(Arms.of(rounds), None, None, 200)
    curves = model_curves(summary, prediction, EMPTY, FACTS, 200, 0)
    for name in ("measured", "capped_geometric", "position", "speedup/measured", "speedup/position"):
        low, value, high = (curves[f"curve/{name}{end}"] for end in (".ci_low", "", ".ci_high"))
        assert set(value) == {1, 2, 4} == set(low) == set(high)
        assert all(low[gamma] <= value[gamma] <= high[gamma] and low[gamma] < high[gamma] for gamma in value), name
    for gamma, arm in summary.arms.items():
        metrics = arm.metrics | model_metrics(curves, gamma)
        for name in ("capped_geometric", "position"):
            assert metrics[f"tokens_per_round.{name}"] == curves[f"curve/{name}"][gamma]
        for quantity, curve in (("tokens_per_round", "curve/measured"), ("speedup", "curve/speedup/measured")):
            for end in ("", ".ci_low", ".ci_high"):
                assert metrics[quantity + end] == curves[curve + end][gamma]
        formula = curves["curve/speedup/capped_geometric"][gamma]
        assert metrics["speedup.capped_geometric"] == pytest.approx(formula, rel=1e-12)
        of_gamma, plain = rounds[rounds["gamma"] == gamma], rounds[rounds["method"] == "baseline"]
        time = (of_gamma["draft_s"] + of_gamma["verify_s"]).mean() / plain["verify_s"].mean()
        priced = curves["curve/speedup/priced"][gamma]
        assert priced == pytest.approx(metrics["tokens_per_round.capped_geometric"] / time, rel=1e-9)
        parts = {part: arm.account.intervals[part].estimate for part in ("verify", "acceptance", "loop")}
        assert priced == pytest.approx(formula * parts["verify"], rel=1e-9)
        assert priced * parts["acceptance"] * parts["loop"] == pytest.approx(metrics["speedup"], rel=1e-9)
        assert "tokens_per_round.priced" not in metrics  # a price changes no token
    table = prediction.table.set_index(["model", "gamma"])
    assert {gamma: table.at[("position", gamma), "predicted"] for gamma in (1, 2, 4)} == curves["curve/position"]
