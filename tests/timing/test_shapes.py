"""Every call asked for is in the table: made at its context on its shape, or not made, with the reason. Drafts of every
structure are timed equally often, in turn with calls. Nothing is left behind.
"""

from collections import Counter
from dataclasses import replace

import pandas as pd
import pytest
import torch

from specdec.clock import CpuClock, SimulatedClock
from specdec.drafters import Drafter
from specdec.drafters.base import DrafterCapabilities
from specdec.errors import UsageError
from specdec.records import EMPTY, Draft, TextStart
from specdec.sampling import generator_for
from specdec.targets.causal import Causal
from specdec.targets.encoder_decoder import EncoderDecoder
from specdec.timing.calls import time_drafts, time_shapes, tokens_evaluated
from specdec.timing.timer import Timer

SHAPES = [(1, 0), (1, 2), (2, 0), (2, 1), (4, 1), (4, 3)]


@pytest.fixture(params=["packed", "rows"])
def target(request, tiny_model, sampling):
    target = Causal(tiny_model("llama"), sampling(temperature=0.0))
    target.evaluation = request.param
    return target


def timer(calls, clock=None, **limits):
    return Timer(clock or CpuClock(), calls, generator_for(0, "p", "cost"), **limits)


def timed(target, tokens=(5, 6, 7), shapes=SHAPES, contexts=(8, 40), calls=2, **limits):
    return time_shapes(target, tokens, shapes, contexts, timer(calls, **limits))


def cells(table: pd.DataFrame, missing: str = "") -> Counter:
    kept = table[table["missing"] == missing]
    return Counter(kept[["k", "w", "context"]].itertuples(index=False, name=None))


def test_every_cell_is_measured_on_its_shape_at_its_context(target):
    seen, inputs, rows = Counter(), Counter(), target.evaluation == "rows"
    verify, verify_roots, model = target.verify, target.verify_roots, target.decoder.model

    def watched(draft):
        tree = draft.tree
        assert all(len(tree.path(leaf)) == tree.depth for leaf in tree.leaves)
        if len(tree):
            seen[max(1, len(tree.leaves)), tree.depth, target.decoder.length] += 1
        return verify(draft)

    def watched_roots(sequences):
        seen[sequences, 0, target.decoder.length] += 1
        return verify_roots(sequences)

    hook = model.register_forward_pre_hook(
        lambda _, args, named: inputs.update([tuple(named["input_ids"].shape)]), with_kwargs=True
    )
    beats = []
    target.verify, target.verify_roots = watched, watched_roots
    found = timed(target, heartbeat=lambda: beats.append(1))
    hook.remove()
    distinct = {(k if w or rows else 1, w) for k, w in SHAPES}
    assert cells(found) == {(k, w, context): 2 for k, w in distinct for context in (8, 40)}
    assert (found["seconds"] > 0).all() and (found["missing"] == "").all() and set(found["call"]) == {0, 1}
    # Each timed call follows one that is not counted, and a prefill is followed by one more on the first shape.
    assert set(seen) == set(cells(found))
    assert seen[4, 3, 8] == 4 and seen[1, 0, 8] == 6 and len(beats) == 4
    # What the model was given is what the table says it evaluated.
    assert set(found["rows_evaluated"]) == {tokens_evaluated(k, w, target.evaluation) for k, w in distinct}
    assert set(found["rows_evaluated"]) <= {batch * length for batch, length in inputs}
    # Rows are sequences of w + 1 tokens each, also those of width 0; a chain takes one sequence.
    assert {(2, 1), (4, 4)} <= set(inputs) if rows else {batch for batch, _ in inputs} == {1}
    assert set(found["evaluation"]) == {target.evaluation}


def test_the_cache_is_left_as_it_was_found(target):
    with torch.inference_mode():
        timed(target, contexts=[8], calls=1)
        after = target.verify(EMPTY)
        target.start(TextStart([5, 6, 7, 5, 6, 7, 5, 6, 7], 12))
        assert torch.allclose(after, target.verify(EMPTY), atol=1e-12)


def test_a_spent_budget_leaves_one_pass(target):
    found = timed(target, calls=3, limit=0.0)
    distinct = {(k if w or target.evaluation == "rows" else 1, w) for k, w in SHAPES}
    assert cells(found) == {(k, w, context): 1 for k, w in distinct for context in (8, 40)}
    assert cells(found, "time") == {cell: 2 for cell in cells(found)}
    assert found["seconds"].isna().sum() == 2 * len(cells(found))


def test_contexts_are_cut_and_shapes_left_out_by_what_the_target_holds(tiny_model, sampling, caplog):
    target = Causal(tiny_model("llama"), sampling(temperature=0.0))
    assert target.context_length == 256
    shapes = [(1, 1), (2, 4), (1, 200)]
    found = timed(target, shapes=shapes, contexts=[8, 500, 1000], calls=1)
    longest = 256 - 1 - 4
    assert set(cells(found)) == {(k, w, context) for k, w in ((1, 1), (2, 4)) for context in (8, longest)}
    left_out = {(1, 200, 8), (1, 200, longest), *((*shape, c) for shape in shapes for c in (500, 1000))}
    assert set(cells(found, "context")) == left_out
    assert "500, 1000" in caplog.text and str(longest) in caplog.text


def test_what_there_is_no_memory_for_is_left_out(tiny_model, sampling):
    target = Causal(tiny_model("llama"), sampling(temperature=0.0))
    target.evaluation = "rows"
    asked, verify = [], target.verify

    def check(prompt, capacity, branches=1):
        asked.append(branches)
        if branches > 2:
            raise UsageError("too many copies")

    def limited(draft):
        if draft.tree.depth == 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")
        return verify(draft)

    target.check_memory, target.verify = check, limited
    with torch.inference_mode():
        target.verify(EMPTY)
    found = timed(target, contexts=[8])
    assert asked[:2] == [4, 2] and 4 not in asked[1:]  # what there is no memory for is asked for once
    assert set(cells(found, "memory")) == {(4, 1, 8), (4, 3, 8), (1, 2, 8)}
    assert set(cells(found)) == {(1, 0, 8), (2, 0, 8), (2, 1, 8)}


def test_both_ways_are_timed_in_turn(tiny_model, sampling):
    target = Causal(tiny_model("llama"), sampling(temperature=0.0))
    order, prepared, start = [], [], target.start
    # Once for all: copies for the rows, room for the longest packed draft, and the sizes of packed calls.
    target.prepare = lambda *sizes: prepared.append((target.evaluation, *sizes))

    def watched(text):
        order.append((target.evaluation, len(text.prompt)))
        start(text)

    target.start = watched
    found = time_shapes(target, (5, 6, 7), SHAPES, [8, 40], timer(2), ["rows", "packed"])
    assert target.evaluation == "packed" and prepared == [("rows", {1, 3, 5, 13}, 40 + 1 + 13, 4)]
    assert order == 2 * [(way, context + 1) for context in (8, 40) for way in ("rows", "packed")]
    assert cells(found[found["evaluation"] == "rows"]) == {(*shape, c): 2 for shape in SHAPES for c in (8, 40)}
    packed = {(k if w else 1, w) for k, w in SHAPES}
    assert cells(found[found["evaluation"] == "packed"]) == {(*shape, c): 2 for shape in packed for c in (8, 40)}
    assert found["seconds"].gt(0).all()


@pytest.mark.parametrize("compilation", [None, "trace"])
def test_a_batch_of_roots_is_a_plain_step_in_each_of_its_sequences(tiny_model, sampling, monkeypatch, compilation):
    """A traced pass runs here as it was written, which takes no time to make, and writes into its own cache."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    target = Causal(tiny_model("llama"), sampling(temperature=1.0), compilation=compilation)
    target.evaluation = "rows"
    prompt = [5, 6, 7, 5, 6, 7, 5]
    with torch.inference_mode():
        target.prepare({1}, 20, 4)
        target.start(TextStart(prompt, 20, 4))
        one = target.verify(EMPTY)
        target.discard()
        for sequences in (4, 3, 2, 1):
            p = target.verify_roots(sequences)
            assert p.shape == one.shape and torch.allclose(p, one, atol=1e-12)
            # Each sequence wrote the root behind its own copy of the prefix.
            assert target.decoder.length == len(prompt)
            keys = target.decoder.cache.layers[0].keys[:sequences, :, : len(prompt)]
            assert torch.allclose(keys, keys[:1].expand_as(keys), atol=1e-12)
            target.discard()


def test_other_faults_are_not_swallowed(tiny_model, sampling):
    target = Causal(tiny_model("llama"), sampling(temperature=0.0))

    def broken(draft):
        raise RuntimeError("shapes do not match")

    target.verify = broken
    with pytest.raises(RuntimeError, match="shapes"):
        timed(target)


def test_rows_of_an_encoder_decoder(tiny_encoder_decoder, sampling):
    target = EncoderDecoder(tiny_encoder_decoder("t5"), sampling(temperature=0.0))
    found = timed(target, calls=1)
    assert (found["missing"] == "").all() and found["rows_evaluated"].max() == 16


def test_a_target_without_rows_is_refused(table, random_law):
    target = table(random_law(4, 0))
    assert (timed(target, tokens=[1, 2], calls=1)["missing"] == "").all()
    target.capabilities = replace(target.capabilities, structures=frozenset({"chain"}))
    with pytest.raises(UsageError, match="rows"):
        timed(target)


PROMPT = [7, 3, 19, 44, 3, 19, 52]


class Turns(SimulatedClock):
    """Reads 1, 2, 3, ..., and what a drafter adds."""

    def mark(self):
        self.advance(1.0)
        return super().mark()


class Slow(Drafter):
    """Every draft takes two seconds for each level and one for each node, and half as much again the first time."""

    capabilities = DrafterCapabilities(fills=frozenset({"tree", "chain"}))

    def __init__(self, clock):
        self.clock, self.seen = clock, set()

    def draft(self, structure):
        cost = 2 * structure.gamma + structure.nodes
        self.clock.advance(cost if structure in self.seen else 1.5 * cost)
        self.seen.add(structure)
        return Draft(torch.zeros(len(structure.tree), dtype=torch.long), structure.tree) if structure.nodes else EMPTY


@pytest.mark.parametrize("evaluation", ["packed", "rows"])
def test_every_structure_is_timed_apart_from_its_first_draft(tiny_model, sampling, make_structure, evaluation):
    target = Causal(tiny_model("llama"), sampling(temperature=0.0), evaluation=evaluation)
    clock = Turns()
    shapes = [make_structure("tree", 3), make_structure("chain", 2), make_structure("tree", 1)]
    table = time_drafts(target, Slow(clock), shapes, PROMPT, timer(4, clock))
    assert table.groupby("structure")["call"].apply(sorted).tolist() == [[0, 1, 2, 3]] * 3
    assert table["drafted"].tolist() == table["nodes"].tolist()
    assert dict(zip(table["structure"], table["nodes"], strict=True)) == {0: 6, 1: 2, 2: 2}
    assert (table["seconds"] == 1 + 2 * table["depth"] + table["nodes"]).all()
    orders = table.sort_index().groupby("call")["structure"].apply(tuple)
    assert len(set(orders)) > 1, "in random order"
    assert target.decoder.length == len(PROMPT) - 1


def test_a_drafter_that_reads_states_is_given_them(tiny_model, sampling, make_structure):
    class Reader(Slow):
        capabilities = DrafterCapabilities(fills=frozenset({"chain"}), reads_states=True)

        def start(self, text, states=None):
            self.read_of = states.shape

    target = Causal(tiny_model("llama"), sampling(temperature=0.0))
    target.hidden.keep(0)
    reader = Reader(Turns())
    time_drafts(target, reader, [make_structure("chain", 1)], PROMPT, timer(1, reader.clock))
    assert tuple(reader.read_of) == (len(PROMPT) - 1, 32)
