"""Decoding several sequences at once gives each the text, and the rounds, that it has when it is decoded alone."""

from dataclasses import replace

import pytest
import torch

from specdec.batching.batch_target import batch_target
from specdec.batching.decode_batch import decode_batch
from specdec.batching.each_drafter import batch_drafter
from specdec.clock import CpuClock, SimulatedClock
from specdec.decode import generate
from specdec.drafters.base import drafters
from specdec.errors import NumericsError, UsageError
from specdec.records import Request
from specdec.sampling import generator_for
from specdec.structures.base import structures
from specdec.targets.causal import Causal
from specdec.verifiers.base import verifiers

# Of unequal lengths and limits, so that sequences finish at different times: some as the queue is empty, some before.
PROMPTS = [[0, 3, 1, 4, 0, 3, 1, 2, 0, 3], [2], [1, 4, 1], [4, 4, 0, 2, 1, 3, 2, 2, 0, 1, 4, 2, 3], [3, 0, 2, 3, 0]]
LIMITS = [9, 3, 14, 6, 11]
CASES = [
    (name, structure)
    for name in drafters.names()
    for structure in structures.names()
    if structure in drafters.get(name).capabilities.fills
]


def requests(prompts=PROMPTS, limits=LIMITS, references=None):
    """Requests with generators of their own, anew at each call."""
    return [
        Request(
            prompt,
            limit,
            draft_generator=generator_for(0, f"prompt {place}", "draft"),
            accept_generator=generator_for(0, f"prompt {place}", "accept"),
            reference=None if references is None else references[place],
        )
        for place, (prompt, limit) in enumerate(zip(prompts, limits, strict=True))
    ]


def decoded(target, drafter, structure, asked, slots, verifier="speculative_sampling"):
    """All requests at once, in `slots` slots; with 0 slots one after another, by the loop for one sequence."""
    how = {"verifier": verifiers.build({"name": verifier}), "structure": structure, "clock": CpuClock()}
    if slots == 0:
        return [generate(target=target, drafter=drafter, request=each, **how) for each in asked]
    batches = {"target": batch_target(target, slots), "drafter": batch_drafter(drafter, target, slots)}
    return decode_batch(**batches, requests=asked, **how).generations


def told(generation):
    """All that is recorded of a text but the clock's readings and the size of the batch."""
    rounds = [replace(row, marks=None, batch=1, beta=()) for row in generation.rounds]
    return generation.tokens, generation.finish, rounds


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_every_drafter_decodes_in_a_batch_as_it_does_alone(small_target, drafter_values, make_structure, name, shape):
    can = drafters.get(name).capabilities
    target = small_target(name, 5, temperature=0.0 if can.needs_reference else 1.0)
    drafter = drafters.build(drafter_values(name, 5, target), target=target)
    structure, references = make_structure(shape, 3), [[1, 2, 0, 4, 3] * 3] * len(PROMPTS)
    alone = decoded(target, drafter, structure, requests(references=references), 0)
    together = decoded(target, drafter, structure, requests(references=references), 3)
    assert [told(each) for each in together] == [told(each) for each in alone]


# Longer than the windows of 6, and repetitive, so that n-grams match.
TEXTS = [
    [7, 3, 19, 44, 3, 19, 52, 7, 3, 19, 44, 8, 3, 19],
    [5, 5],
    [40, 12, 33, 12, 40, 12, 33, 2, 40],
    [60],
    [9, 8, 9, 8, 9, 21, 22, 9, 8, 9, 21, 22, 3, 3, 3, 9, 8, 30],
]


@pytest.fixture(scope="module")
def small_model(drafter_values):
    """A model that agrees with the tiny llama on about half of a text."""
    return drafter_values("small_model", 61)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("architecture", ["gemma2", "gemma3", "gpt2", "llama", "mistral_window"])
def test_texts_of_a_model_are_those_of_batch_one(
    tiny_model, sampling, make_structure, small_model, architecture, temperature
):
    """Chains and trees, at every size of the batch; drafts of random quality, so that sequences drift apart."""
    target = Causal(tiny_model(architecture), sampling(temperature=temperature), prefill_chunk=5)
    drafter = drafters.build(small_model, target=target)
    for shape, sizes in (("chain", (1, 2, 5)), ("tree", (3,))):
        structure = make_structure(shape, 3)
        alone = decoded(target, drafter, structure, requests(TEXTS, LIMITS), 0)
        for slots in sizes:
            together = decoded(target, drafter, structure, requests(TEXTS, LIMITS), slots)
            assert [told(each) for each in together] == [told(each) for each in alone], (shape, slots)
