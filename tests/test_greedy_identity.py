"""Speculative greedy output is the model's own greedy output, token for token, in float64 (STYLE 10).

The reference is transformers' own `generate`, with its own cache and masks, on a tiny random model of every
architecture; drafters and verifiers come from the registries.
"""

from functools import cache

import pytest
import torch

from specdec.decode import generate
from specdec.drafters.base import drafters
from specdec.measurement.timers import CpuClock
from specdec.sampling import generator_for
from specdec.structures.base import structures
from specdec.targets.causal import Causal
from specdec.verifiers.base import verifiers

NEW_TOKENS = 28
# Repetitive, so that n-grams match; longer than the windows of 6.
PROMPT = [7, 3, 19, 44, 3, 19, 52, 7, 3, 19, 44, 8, 3, 19]


@pytest.fixture(scope="module")
def own_greedy(tiny_model):
    """`own_greedy("llama")`: the continuation that transformers' generate writes, computed once."""

    @cache
    def run(architecture: str) -> tuple[int, ...]:
        output = tiny_model(architecture).generate(
            torch.tensor([PROMPT]),
            attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
            max_new_tokens=NEW_TOKENS,
            do_sample=False,
            pad_token_id=0,
        )
        return tuple(output[0, len(PROMPT) :].tolist())

    return run


@pytest.fixture(scope="module")
def target_of(tiny_model, sampling):
    @cache
    def make(architecture: str) -> Causal:
        return Causal.from_model(tiny_model(architecture), sampling(temperature=0.0))

    return make


def decoded(target, drafter, verifier, structure, reference=None, prompt=PROMPT):
    return generate(
        target=target,
        drafter=drafter,
        verifier=verifiers.build({"name": verifier}),
        structure=structure,
        prompt=prompt,
        max_new_tokens=NEW_TOKENS,
        clock=CpuClock(),
        draft_generator=generator_for(0, "prompt", "draft"),
        accept_generator=generator_for(0, "prompt", "accept"),
        reference=reference,
    )


def chain(gamma):
    return structures.build({"name": "chain", "gamma": gamma})


def test_the_texts_do_not_collapse(architecture, own_greedy):
    """A model that repeats one token would hide nearly every fault."""
    assert len(set(own_greedy(architecture))) >= 6


@pytest.mark.parametrize("verifier", verifiers.names())
@pytest.mark.parametrize("drafter", drafters.names())
def test_output_is_the_models_own(architecture, own_greedy, target_of, drafter_values, drafter, verifier):
    if not (verifiers.get(verifier).lossless and drafters.get(drafter).lossless):
        pytest.skip("declares that it is not lossless")
    target, own = target_of(architecture), own_greedy(architecture)
    built = drafters.build(drafter_values(drafter, target.vocab_size), target=target)
    reference = own if built.needs_reference else None
    for gamma in (1, 4):
        generation = decoded(target, built, verifier, chain(gamma), reference)
        assert generation.tokens == own
        assert sum(len(row.committed) for row in generation.rounds) == NEW_TOKENS
    if drafter == "oracle":
        accepted = sum(row.accepted for row in generation.rounds)
        assert 0 < accepted and any(row.rejected for row in generation.rounds), "both branches must have been taken"


def test_ngrams_are_accepted_somewhere(own_greedy, target_of, group_values):
    """Otherwise the identity above says little about committing copied tokens."""
    target, own = target_of("llama"), own_greedy("llama")
    built = drafters.build(group_values("drafter", "ngram"), target=target)
    generation = decoded(target, built, "greedy", chain(4), prompt=[*PROMPT, *own, *PROMPT])
    baseline = decoded(
        target,
        drafters.build({"name": "none"}, target=target),
        "greedy",
        chain(4),
        None,
        [*PROMPT, *own, *PROMPT],
    )
    assert generation.tokens == baseline.tokens
    assert sum(len(row.draft_tokens) for row in generation.rounds) > 0
