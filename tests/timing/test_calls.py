"""Calibration leaves the target where it was, and measures the sizes asked for."""

import json

import pytest
import torch

from specdec.clock import CpuClock, SimulatedClock
from specdec.drafters import drafters
from specdec.records import EMPTY, TextStart, chain_tree
from specdec.sampling import generator_for
from specdec.structures import structures
from specdec.targets.base import model_target
from specdec.targets.causal import Causal
from specdec.timing.calls import calibrate, call_sizes, time_calls
from specdec.timing.timer import Timer


def timer(calls, *limits):
    return Timer(CpuClock(), calls, generator_for(0, "p", "calibration"), *limits)


def test_sizes_repeats_and_an_untouched_cache(tiny_model, sampling, group_values):
    target = Causal(tiny_model("llama"), sampling(temperature=0.0))
    drafter = drafters.build(group_values("drafter", "ngram"), target=target)
    chain = structures.build({"name": "chain", "gamma": 4})
    prompt = [5, 6, 7, 5, 6]
    trees = [chain_tree(2), chain_tree(4)]
    found = calibrate(target, drafter, chain, prompt, trees, timer(4))
    assert {size: len(times) for size, times in found.calls.items()} == {1: 4, 3: 4, 5: 4}
    assert found.context == 5 and len(found.draft) == 4
    assert min(time for times in found.calls.values() for time in times) > 0
    assert found.as_dict()["t_n"][1]["ratio"] == 1.0
    with torch.inference_mode():
        after = target.verify(EMPTY)
        target.start(TextStart(prompt, 8))
        assert (after == target.verify(EMPTY)).all()
    trees = [chain_tree(1)]
    found = calibrate(target, drafter, chain, [5, 6, 7, 5, 6], trees, timer(3), gammas=(4, 2))
    assert {gamma: len(times) for gamma, times in found.drafts.items()} == {2: 3, 4: 3} and len(found.draft) == 3
    assert calibrate(target, drafter, chain, [5, 6, 7, 5, 6], trees, timer(3)).drafts == {}
    # A text without repetition gives an n-gram drafter nothing to propose, and so nothing to time.
    assert calibrate(target, drafter, chain, [1, 2, 3], trees, timer(3), gammas=(2,)).drafts == {2: []}
    verify, lengths = target.verify, set()
    target.verify = lambda draft: lengths.add(target.decoder.length) or verify(draft)
    calibrate(target, drafter, chain, [5, 6, 7, 5, 6], [chain_tree(2), chain_tree(4)], timer(3))
    assert lengths == {4}  # the root is evaluated with the draft


def test_a_timed_call_ends_with_standardised_probabilities(tiny_model, sampling, group_values, monkeypatch):
    """Standardising is all that moves this clock, by a second: so long is every call, under the run's own sampling."""
    cut = sampling(temperature=0.7, top_k=5)
    target, clock, seen = Causal(tiny_model("llama"), cut), SimulatedClock(), []
    standardised = model_target.checked_probabilities

    def slow(logits, by):
        clock.advance(1.0)
        seen.append(by)
        return standardised(logits, by)

    monkeypatch.setattr(model_target, "checked_probabilities", slow)
    drafter = drafters.build(group_values("drafter", "ngram"), target=target)
    chain = structures.build({"name": "chain", "gamma": 4})
    made = Timer(clock, 3, generator_for(0, "p", "calibration"))
    found = calibrate(target, drafter, chain, [5, 6, 7, 5, 6], [chain_tree(2), chain_tree(4)], made)
    assert found.calls == {1: [1.0] * 3, 3: [1.0] * 3, 5: [1.0] * 3} and set(seen) == {cut}
    timed = time_calls(target, [5, 6, 7], (1, 3), (8,), Timer(clock, 2, generator_for(0, "p", "cost")))
    assert cells_of(timed) == {(1, 8): [1.0] * 2, (3, 8): [1.0] * 2}


def test_call_sizes():
    for largest, dense, expected in (
        (64, 16, [*range(1, 17), 20, 24, 28, 32, 40, 48, 56, 64]),
        (64, 64, [*range(1, 65)]),
        (64, 1, [1, 2, 4, 8, 16, 32, 64]),
        (12, 5, [1, 2, 3, 4, 5, 6, 7, 8, 10, 12]),
        (6, 100, [1, 2, 3, 4, 5, 6]),
    ):
        assert call_sizes(largest, dense) == expected


def cells_of(grid):
    return {(cell["rows"], cell["context"]): cell["seconds"] for cell in grid["cells"]}


def grid(target, sizes=(1, 2, 3, 4), contexts=(8, 40), calls=2, seconds=60.0):
    return time_calls(target, [5, 6, 7], sizes, contexts, timer(calls, seconds))


def test_every_cell_of_the_grid_is_measured_at_its_context(tiny_model, sampling):
    target = Causal(tiny_model("llama"), sampling(temperature=0.0))
    seen = set()
    verify = target.verify

    def watched(draft):
        seen.add((len(draft) + 1, target.decoder.length))
        return verify(draft)

    target.verify = watched
    found = json.loads(json.dumps(grid(target)))
    cells = cells_of(found)
    assert {cell: len(times) for cell, times in cells.items()} == {
        (n, context): 2 for context in (8, 40) for n in (1, 2, 3, 4)
    }
    assert seen == set(cells)
    assert found["complete"] and min(min(times) for times in cells.values()) > 0
    found = grid(target, calls=5, seconds=1e-9)
    assert {cell: len(times) for cell, times in cells_of(found).items()} == {
        (n, context): 1 for n in (1, 2, 4) for context in (8, 40)
    }
    assert not found["complete"]
    assert target.context_length == 256
    found = grid(target, sizes=[1, 64, 200], contexts=[8, 500, 1000], calls=1)
    assert set(cells_of(found)) == {(n, context) for n in (1, 64) for context in (8, 191)}


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "opt", "phi3", "gemma3", "qwen3"])
def test_products_hold_the_weights_of_a_model(name, tiny_model, sampling):
    model = tiny_model(name)
    target = Causal(model, sampling(temperature=0.0))
    products = target.products()
    weights = sum(product.values(0) for product in products)
    # All parameters but biases, norms and what is looked up; a tied head counts.
    sizes = [weight.numel() for key, weight in model.named_parameters() if weight.dim() > 1 and "embed" not in key]
    sizes = [size for size in sizes if size not in (61 * 32, 256 * 32, 258 * 32)]
    assert weights == sum(sizes) + 61 * 32
    scores = next(product for product in products if product.name == "attention scores")
    keys = model.config.num_hidden_layers * (getattr(model.config, "num_key_value_heads", None) or 4) * 8
    assert scores.values(10) == 10 * keys
    assert scores.flops(1, 9) == 2 * 10 * model.config.num_hidden_layers * 32
    assert all(product.bytes_per_value == 8 for product in products)
