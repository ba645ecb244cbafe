"""Cost models: the published coefficients give the published account, and a run's own files its fitted times."""

import json
from pathlib import Path

import numpy as np
import pytest
from fixtures.rounds_tables import build_rounds
from oracles.calls import cache_bytes, call_seconds

from specdec.analysis.cost.call_cost import CallCost as Fitted
from specdec.config import config_dir
from specdec.cost_model import DraftCost, SimulatedCost
from specdec.errors import UsageError
from specdec.targets.replay import cost_of_run, load_cost
from specdec.theory.roofline import Product

CONF = Path(config_dir()) / "cost"
PRODUCTS = (
    Product("projection", 64, 96, matrices=3, bytes_per_value=2.0),
    Product("attention scores", 16, None, matrices=6, bytes_per_value=2.0, queries=2),
    Product("attention values", None, 16, matrices=6, bytes_per_value=2.0, queries=2),
)


def test_the_published_coefficients_give_the_published_account():
    """theory.md 8.1: H100, LLaMA-3.1-8B, EAGLE-3, gamma 3, 300 cached tokens."""
    cost = load_cost("h100_llama31_8b")
    t1, overhead = cost.seconds(1, 300), cost.overhead_s
    g, v, o = cost.draft.seconds(3, 300) / t1, cost.seconds(4, 300) / t1, overhead / t1
    assert (t1 + overhead) / t1 == pytest.approx(1.203903, abs=1e-6)
    assert (1 + g) / (v + g) == pytest.approx(0.992239, abs=1e-6)
    assert (v + g) / (v + g + o) == pytest.approx(0.870621, abs=1e-6)
    assert 1 / (1 + g) == pytest.approx(0.734508, abs=1e-6), "the draft's own cache is read too"
    # The source charges a look-up a share of the verification, and nothing where nothing is proposed.
    assert cost.lookup_seconds(cost.seconds(4, 300)) == pytest.approx(0.005875 * (v * t1))


def test_the_roofline_is_that_of_the_theory():
    cost = load_cost("h100_llama31_8b_roofline")
    weights, token = 7.505e9 * 2, cache_bytes(1, 32, 8, 128, 2)
    assert cost.seconds(1, 1000) == pytest.approx(call_seconds(weights + 1000 * token, 0.0, 3.35e12, 989e12), rel=1e-6)
    rows = 25 * (15 + 1)  # 25 rows of 15 draft tokens, each with the root: 400 tokens, computed as 448; 25 caches
    flops = 448 * 2 * 7.505e9 + 448 * (1000 + 448 / 25) * 524_288
    expected = call_seconds(weights + 25 * 1000 * token, flops, 3.35e12, 989e12)
    assert cost.seconds(rows, 1000, copies=25) == pytest.approx(expected, rel=1e-6)
    assert cost.seconds(64, 0) == cost.seconds(1, 0), "one tile hides behind the weights"


@pytest.mark.parametrize("more", [(), (Product("up", 64, 96, matrices=3, bytes_per_value=2.0, experts=8, chosen=2),)])
@pytest.mark.parametrize("overlap", [True, False])
def test_a_run_with_a_fit_is_taken_at_its_word(tmp_path, overlap, more):
    fitted = Fitted(2e-4, 3e-8, 4e-11, 8, overlap, 1e9, PRODUCTS + more)
    fit = {key: value for key, value in vars(fitted).items() if key != "products"}
    products = [vars(product) for product in fitted.products]
    (tmp_path / "cost.json").write_text(json.dumps({"fit": fit, "products": products}))
    calls = {"context": 100, "calls": {"1": [1e-3]}, "drafts": {"1": [1e-4], "3": [2e-4, 3e-4, 9e-4]}}
    (tmp_path / "calibration.json").write_text(json.dumps(calls))
    (tmp_path / "config.yaml").write_text("{}")
    seconds = {"draft_s": 0.25, "verify_s": 0.5625, "accept_s": 0.0, "commit_s": 0.125, "round_s": 1.0}
    build_rounds({"p": [1, 2]}, 4, durations=seconds).to_parquet(tmp_path / "rounds.parquet")
    for name in (tmp_path, tmp_path / "cost.json", tmp_path / "calibration.json"):
        cost = load_cost(str(name))
        for rows in (1, 7, 8, 9, 40):
            for context in (0, 64, 2000):
                assert cost.seconds(rows, context) == pytest.approx(float(fitted.seconds(rows, context)), rel=1e-12)
        assert cost.overhead_s == pytest.approx(0.1875)
        assert cost.draft.seconds(1) == pytest.approx(1e-4) and cost.draft.seconds(3) == pytest.approx(3e-4)
        assert cost.lookup_s == pytest.approx(2e-4)
        assert str(tmp_path) in cost.source


def test_a_run_without_a_fit_gives_a_line(tmp_path):
    (tmp_path / "config.yaml").write_text("{}")
    times = {str(n): [2e-3 + 1e-4 * n] * 3 for n in (1, 2, 5, 9)}
    (tmp_path / "calibration.json").write_text(json.dumps({"context": 80, "calls": times, "drafts": {"1": []}}))
    cost = cost_of_run(tmp_path)
    assert [cost.seconds(n, 80) for n in (1, 6, 9)] == pytest.approx([2.1e-3, 2.6e-3, 2.9e-3])
    assert (cost.overhead_s, cost.lookup_s, cost.draft.seconds(4)) == (0.0, 0.0, 0.0)
    assert "80 cached tokens only" in cost.source


def test_copies_of_the_cache_are_read_and_not_multiplied():
    cost = load_cost("h100_llama31_8b")
    extra = cost.seconds(110, 500, copies=10) - cost.seconds(110, 500)
    assert extra == pytest.approx(9 * 500 * cost.cached_s)
    seconds = [cost.seconds(n, 10) for n in range(1, 40)]
    assert (np.diff(seconds) > 0).all()


def test_an_empty_draft_costs_nothing():
    cost = DraftCost(fixed_s=1.0, step_s=0.5, cached_s=0.01)
    assert cost.seconds(0) == cost.seconds(0, 100) == 0.0
    assert cost.seconds(4) == 3.0 and cost.seconds(4, 100) == 4.0


@pytest.mark.parametrize("name", ["h100_llama31_8b", "h100_llama31_8b_roofline"])
def test_many_calls_at_once_cost_what_each_does(name):
    """To the last bit: a walk adds up arrays where the loop adds up numbers."""
    cost = load_cost(name)
    sizes = [(1, 0, 1), (5, 300, 1), (64, 20, 1), (130, 4000, 10)]
    rows, context, copies = (np.array(column) for column in zip(*sizes, strict=True))
    assert cost.seconds(rows, context, copies).tolist() == [cost.seconds(*each) for each in sizes]
    depths = np.array([0, 1, 4, 0])
    expected = [cost.draft.seconds(int(depth), each[1]) for depth, each in zip(depths, sizes, strict=True)]
    assert cost.draft.seconds(depths, context).tolist() == expected


def test_what_is_no_cost_model(tmp_path):
    with pytest.raises(UsageError, match="target.cost=h100_lama: no such cost model. Did you mean h100_llama31_8b"):
        load_cost("h100_lama")
    with pytest.raises(UsageError, match="target.cost: .* is no run's output folder"):
        load_cost(str(tmp_path))
    (tmp_path / "config.yaml").write_text("{}")
    with pytest.raises(UsageError, match="no artifact calibration.json; every run that began to decode writes it"):
        load_cost(str(tmp_path))
    bad = tmp_path / "mine.yaml"
    bad.write_text("name: mine\nfixed_s: -1.0\n")
    with pytest.raises(UsageError, match="cost"):
        load_cost(str(bad))
    bad.write_text("- 1\n")
    with pytest.raises(UsageError, match="holds no keys"):
        load_cost(str(bad))
    (tmp_path / "calibration.json").write_text("{")
    with pytest.raises(UsageError, match="target.cost: .*calibration.json:1: not JSON"):
        load_cost(str(tmp_path))


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_model_says_where_it_comes_from(path):
    cost = load_cost(path.stem)
    assert isinstance(cost, SimulatedCost) and cost.name == path.stem and len(cost.source) > 20
