"""A text that is decoded on a GPU is the text of the CPU, and no tensor of one is joined to one of the other.

The GPU is simulated (`fixtures.second_device`), because the machines that run the tests have none.
"""

from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import pairwise

import pytest
import torch
from fixtures.decoding import decode
from fixtures.second_device import DEVICE, drawing_from, second_device, waits
from fixtures.tiny_models import unprobed

from specdec.batching.batch_parts import as_one, batch_drafter, batch_target
from specdec.batching.decode_batch import decode_batch
from specdec.certification.greedy_identity import PROMPT, own_greedy
from specdec.certification.tiny_models import load_tiny_model
from specdec.clock import CpuClock, SimulatedClock
from specdec.drafters import staged
from specdec.drafters.base import drafters, network_drafter
from specdec.records import Request, chain_tree
from specdec.replay.expected_rounds import TextReplay
from specdec.replay.walk import Led, TextReading
from specdec.sampling import SamplingConfig, generator_for, generator_on
from specdec.targets.causal import Causal
from specdec.timing.calls import calibrate, time_calls, time_drafts, time_shapes
from specdec.timing.timer import Timer
from specdec.verifiers import speculative_sampling, verifiers

LIMIT = 6
DRAFTERS = {name: drafters.get(name).capabilities for name in drafters.names()}
OTHERS_NEVER_READ = ("eagle", "early_exit", "grounded", "jacobi", "mtp", "none", "parallel")
"""Drafters of which, too, the host reads nothing before the decision; others look at their tokens, or a confidence."""
FIRST = [  # every rule, and every structure; K-SEQ needs siblings that few drafters draw: below
    *(
        ("ngram", rule, shape, 1.0)
        for rule in verifiers.names()
        for shape in ("chain", "tree")
        if rule not in ("greedy", "k_seq") and shape in verifiers.get(rule).capabilities.handles
    ),
    *(("ngram", "greedy", shape, 0.0) for shape in sorted(DRAFTERS["ngram"].fills)),
    *((name, "greedy", "rows", 0.0) for name in ("medusa", "recycling")),
]


def slowly(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


def of_every_drafter():
    """Every drafter along a chain that is drawn, and in a structure that branches; structures and rules take turns."""
    for turn, (name, can) in enumerate(DRAFTERS.items()):
        if "chain" in can.fills:
            yield name, "speculative_sampling", "chain", 1.0
        if branching := sorted(can.fills - {"chain"}):
            rule, temperature = ("greedy", 0.0) if turn % 2 else ("speculative_sampling", 1.0)
            yield name, rule, branching[turn % len(branching)], temperature


@pytest.fixture(autouse=True)
def alike(request, monkeypatch):
    """Both devices draw the same numbers: drafts go on with those of the host, which decides like a GPU, to the end.
    Models are not probed, except in the test that does so.
    """
    for module in (staged, network_drafter):
        monkeypatch.setattr(module, "generator_on", drawing_from)
    monkeypatch.setattr(speculative_sampling, "can_look", lambda values: False)
    with nullcontext() if "probe" in request.node.name else unprobed():
        yield


@cache
def targets(temperature, architecture="llama"):
    """Return a tiny model as a target of the host, and as one of the second device."""
    sampling = SamplingConfig(name="", temperature=temperature, top_k=None, top_p=None, min_p=None, typical_p=None)
    host = Causal(load_tiny_model(architecture), sampling)
    with second_device():
        return host, Causal(deepcopy(load_tiny_model(architecture)).to(DEVICE), sampling)


@pytest.fixture
def same(drafter_values):
    """`same("ngram", act, temperature=0.0)` checks that `act(target, drafter)` gives on both devices what it gives."""

    def check(name, act, temperature=0.0, architecture="llama"):
        host, there = targets(temperature, architecture)
        values = drafter_values(name, host.vocab_size, host)
        expected = act(host, drafters.build(values, target=host))
        with second_device():
            assert act(there, drafters.build(values, target=there)) == expected
        return expected

    return check


def asked(target, drafter, place=0, limit=LIMIT):
    """Return a request for the text after a beginning of `PROMPT`, that leaves `place` tokens out."""
    return Request(
        PROMPT[: len(PROMPT) - place],
        limit,
        draft_generator=generator_for(0, f"{place}", "draft"),
        accept_generator=generator_for(0, f"{place}", "accept", target.device),
        reference=own_greedy("llama") if drafter.capabilities.needs_reference else None,
    )


def text(target, drafter, structure, verifier, clock=None):
    request = asked(target, drafter)
    generators = {use: getattr(request, use) for use in ("draft_generator", "accept_generator")}
    how = {"reference": request.reference, "clock": clock, **generators}
    return decode(target, drafter, structure, request.prompt, LIMIT, verifier, **how)


@pytest.mark.parametrize(
    ("drafter", "verifier", "shape", "temperature"),
    [*FIRST, *(slowly(*case) for case in of_every_drafter() if case not in FIRST)],
)
def test_every_draft_under_every_rule(same, group_values, make_structure, drafter, verifier, shape, temperature):
    rule, structure = verifiers.build(group_values("verifier", verifier)), make_structure(shape, 3)
    same(drafter, lambda *pair: text(*pair, structure, rule).tokens, temperature)


@pytest.mark.parametrize("shape", [slowly("chain"), "tree"])
def test_siblings_that_are_drawn_independently(same, make_structure, drafter_values, shape):
    host, _ = targets(1.0)
    values = drafter_values("small_model", host.vocab_size, host) | {"siblings": "independent"}

    def act(target, _):
        drafter = drafters.build(values, target=target)
        rules = ("k_seq", "speculative_sampling")
        return [text(target, drafter, make_structure(shape, 2), rule).tokens for rule in rules]

    same("none", act, 1.0)


@pytest.mark.parametrize(
    "architecture", ["gemma3", *(slowly(name) for name in ("deepseek_v32", "gemma4", "gpt2", "llama4"))]
)
def test_kinds_of_architectures_and_evaluations(same, make_structure, architecture):
    """Masks of windows and of chunks, keys of their own or of earlier layers, positions in a table, and copies of the
    cache.
    """

    def act(target, drafter):
        texts = []
        for target.evaluation in ("rows", "packed"):
            texts.append(text(target, drafter, make_structure("tree", 3), "greedy").tokens)
        return texts

    same("ngram", act, architecture=architecture)


@pytest.mark.slow
def test_a_probe_finds_what_it_finds_on_the_host():
    host, there = (replace(each.decoder.probed, errors={}) for each in targets.__wrapped__(0.0))
    assert there == host


@pytest.mark.parametrize(
    "drafter", ["ngram", "small_model", *(slowly(name) for name in ("eagle", "grounded", "layer_skip", "medusa"))]
)
def test_batches(same, make_structure, drafter):
    """More texts than slots, of unequal lengths, come out as they do on the host: with drafters of batches, and with a
    drafter for each slot.
    """
    shape = "tree" if "tree" in DRAFTERS[drafter].fills else min(DRAFTERS[drafter].fills)

    def act(target, single):
        batch = batch_target(target, 2), batch_drafter(single, target, 2)
        rule = verifiers.build({"name": "greedy" if shape == "dynamic" else "speculative_sampling"})
        requests = [asked(target, single, place, 3 + place) for place in range(3)]
        done = decode_batch(*batch, rule, make_structure(shape, 2), requests, CpuClock())
        return [generation.tokens for generation in done.generations]

    same(drafter, act, 0.0 if shape == "dynamic" else 1.0)


@pytest.mark.parametrize(
    "drafter",
    ["eagle", "recycling", *(slowly(name) for name in ("corpus_ngram", "layer_skip", "small_model", "spec_tree"))],
)
def test_replays_along_a_text(same, make_structure, drafter):
    replay, chain = DRAFTERS[drafter].replay, make_structure("chain", 3)
    shape = chain if "chain" in DRAFTERS[drafter].fills else make_structure("rows", 3)
    written = own_greedy("llama")[:LIMIT]

    def act(target, single):
        request, found = asked(target, single), []
        with torch.inference_mode():
            for step in Led(single, TextReading(target)).steps(request, written, [shape]):
                found.append((step[1], tuple(step[2].tokens), tuple(step[3])))
        if replay == "position":
            along = TextReplay(single, target, chain, written, asked(target, single)).agreement()
            found.append((along.beta.round(9).tolist(), along.m.round(9).tolist()))
        if replay == "start" and shape is chain:
            starts = TextReplay(single, target, chain, written, asked(target, single)).starts()
            found.append(starts.m.round(9).tolist())
        return found

    same(drafter, act, 1.0)


@pytest.mark.parametrize("drafter", ["recycling", slowly("small_model")])
def test_measurements(same, make_structure, drafter):
    """The measurements time the same sizes on both devices; the times themselves are not compared."""

    def act(target, drafter):
        def timer():
            return Timer(SimulatedClock(), 1, generator_for(0, "p", "cost"))

        chain, trees = make_structure("chain", 2), [chain_tree(2), make_structure("tree", 2).tree]
        batch = as_one(batch_target(target, 2), batch_drafter(drafter, target, 2))
        together = calibrate(*batch, chain, PROMPT, trees, timer(), (1, 2))
        alone = calibrate(target, drafter, chain, PROMPT, trees, timer(), (1, 2))
        cells = time_calls(target, PROMPT, [1, 3], [4], timer())["cells"]
        shapes = time_shapes(target, PROMPT, [(1, 0), (2, 2)], [5], timer(), ("packed", "rows"))
        drafts = time_drafts(target, drafter, [make_structure("tree", 2)], PROMPT, timer())
        untimed = [{key: value for key, value in cell.items() if key != "seconds"} for cell in cells]
        tables = [table.drop(columns="seconds").to_dict("list") for table in (shapes, drafts)]
        return sorted(together.calls), sorted(alone.calls), sorted(alone.drafts), untimed, tables

    same(drafter, act)


class WaitClock(CpuClock):
    """Reads how often the host has waited for the device so far."""

    def mark(self):
        return float(len(waits))


@pytest.mark.parametrize(
    ("drafter", "temperature"),
    [("ngram", 1.0), ("medusa", 1.0), ("small_model", 0.0), *(slowly(name, 1.0) for name in OTHERS_NEVER_READ)],
)
def test_the_host_waits_once_in_a_round(same, make_structure, drafter, temperature):
    """For the decision; nothing is left to wait for afterwards."""
    rule, rounds = "speculative_sampling" if temperature else "greedy", []

    def act(*pair):
        done = text(*pair, make_structure("chain", 3), rule, WaitClock())
        rounds[:] = done.rounds
        return done.tokens

    same(drafter, act, temperature)
    for each in rounds:
        marks = each.marks.start, each.marks.drafted, each.marks.verified, each.marks.accepted, each.marks.committed
        assert [after - before for before, after in pairwise(marks)] == [0, 0, 1, 0]


def test_a_generator_for_the_device_follows_from_that_of_the_host():
    with second_device():
        made = [generator_on(generator_for(0, "p", "draft"), DEVICE) for _ in range(2)]
        numbers = [torch.rand(3, generator=each, device=DEVICE).tolist() for each in made]
        assert generator_on(made[0], DEVICE) is made[0] and numbers[0] == numbers[1]
        with pytest.raises(RuntimeError, match="generator"):
            torch.rand(3, generator=generator_for(0, "p", "draft"), device=DEVICE)


@pytest.mark.parametrize(
    "mixed",
    [
        lambda there, here: torch.cat([there, here[:0]]),  # as an empty draft once was
        lambda there, here: there + here,
        lambda there, here: here[there.long()],
        lambda there, here: torch.where(there > 0, here, there),
        lambda there, here: there.masked_fill_(here > 0, 0.0),
    ],
)
def test_the_second_device_refuses_tensors_of_the_host(mixed):
    with second_device(), pytest.raises(RuntimeError, match="same device"):
        mixed(torch.ones(3, device=DEVICE), torch.ones(3))


def test_the_second_device_takes_what_a_gpu_takes():
    with second_device():
        there = torch.arange(3, device=DEVICE)
        assert (there + torch.tensor(1))[torch.tensor([2, 0])].device == DEVICE and not waits
        assert there.to("cpu", non_blocking=True).device.type == "cpu" and not waits
        assert there.tolist() == [0, 1, 2] and int(there.sum()) == 3 and len(waits) == 2
        assert torch.tensor([1], device=DEVICE).is_cuda and len(waits) == 3
