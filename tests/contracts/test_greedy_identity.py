"""Speculative greedy output is the model's own greedy output, token for token, in float64.

The reference is transformers' own `generate`, with its own cache and masks, on a tiny random model of every
architecture; drafters and verifiers come from the registries.
"""

import random
from functools import cache

import pytest
import torch

from specdec.clock import CpuClock
from specdec.decode import generate
from specdec.drafters.base import Drafter, DrafterCapabilities, drafters
from specdec.records import Draft, Request, Source
from specdec.sampling import generator_for
from specdec.structures.base import structures
from specdec.targets.causal import Causal
from specdec.verifiers.base.contract import verifiers

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
    """`target_of("llama", "rows")`: with the way in which it evaluates a draft."""

    @cache
    def make(architecture: str, evaluation: str) -> Causal:
        target = Causal(tiny_model(architecture), sampling(temperature=0.0))
        target.evaluation = evaluation
        return target

    return make


def decoded(target, drafter, verifier, structure, reference=None, prompt=PROMPT):
    return generate(
        target=target,
        drafter=drafter,
        verifier=verifiers.build({"name": verifier}),
        structure=structure,
        request=Request(
            prompt,
            NEW_TOKENS,
            draft_generator=generator_for(0, "prompt", "draft"),
            accept_generator=generator_for(0, "prompt", "accept"),
            reference=reference,
        ),
        clock=CpuClock(),
    )


class Scattered(Drafter):
    """Puts each token of a known text at some place among its siblings, or nowhere, with wrong tokens around it."""

    capabilities = DrafterCapabilities(fills=frozenset({"chain", "rows", "tree"}))

    def __init__(self, text):
        self.text, self.position, self.dice = text, 0, random.Random(0)

    def commit(self, tokens, states=None):
        self.position += len(tokens)

    def draft(self, structure):
        tree = structure.tree
        tokens, right = [0] * len(tree), -1
        for node, children in enumerate(tree.children, -1):
            place = self.dice.randrange(len(children) + 1) if node == right else len(children)
            truth = self.text[self.position + (tree.depths[node] if node >= 0 else 0)] if children else 0
            for index, child in enumerate(children):
                tokens[child] = (truth + index - place) % 61
                right = child if index == place else right
        return Draft(torch.tensor(tokens, dtype=torch.long), tree, source=(Source("scattered", 0),) * len(tree))


# What a kind of model can break is masks, positions and the cache: every architecture is shown drafts of which any path
# may be right, in both ways of evaluating them. All else is tried on two architectures.
SHAPES = ("chain", "packed"), *((shape, how) for shape in ("rows", "tree") for how in ("packed", "rows"))
CASES = [
    (drafter, verifier, shape, "packed")
    for drafter in drafters.names()
    for verifier in verifiers.names()
    for shape in structures.names()
    if drafters.get(drafter).capabilities.lossless
    and verifiers.get(verifier).capabilities.lossless
    and shape in drafters.get(drafter).capabilities.fills & verifiers.get(verifier).capabilities.handles
] + [
    (drafter, "greedy", shape, "rows")
    for drafter in drafters.names()
    for shape in structures.names()
    if drafters.get(drafter).capabilities.lossless and shape in drafters.get(drafter).capabilities.fills
]


def test_the_texts_do_not_collapse(architecture, own_greedy):
    """A model that repeats one token would hide nearly every fault."""
    assert len(set(own_greedy(architecture))) >= 6


@pytest.mark.parametrize(("shape", "evaluation"), SHAPES)
def test_any_path_may_be_kept(architecture, own_greedy, target_of, make_structure, shape, evaluation):
    target, own = target_of(architecture, evaluation), own_greedy(architecture)
    generation = decoded(target, Scattered(own), "greedy", make_structure(shape, 4))
    assert generation.tokens == own
    kept = [(row.tree, node) for row in generation.rounds for node in row.acceptance.path]
    assert len(kept) >= 5 and any(row.rejected for row in generation.rounds), "both must have happened"
    if shape != "chain":
        assert any(node != tree.children[tree.parents[node] + 1][0] for tree, node in kept), "not only first choices"


@pytest.mark.parametrize(("drafter", "verifier", "shape", "evaluation"), CASES)
@pytest.mark.parametrize("architecture", ["gemma3", "llama"])
def test_output_is_the_models_own(
    architecture, own_greedy, target_of, drafter_values, make_structure, drafter, verifier, shape, evaluation
):
    target, own = target_of(architecture, evaluation), own_greedy(architecture)
    built = drafters.build(drafter_values(drafter, target.vocab_size, target), target=target)
    reference = own if built.capabilities.needs_reference else None
    for gamma in (1, 4) if shape == "chain" else (3,):
        generation = decoded(target, built, verifier, make_structure(shape, gamma), reference)
        assert generation.tokens == own
        assert sum(len(row.committed) for row in generation.rounds) == NEW_TOKENS
    if drafter == "oracle":
        accepted = sum(row.accepted for row in generation.rounds)
        assert 0 < accepted and any(row.rejected for row in generation.rounds), "both branches must have been taken"


@pytest.mark.parametrize(("shape", "evaluation"), SHAPES)
def test_output_of_heads_that_attend_over_the_draft_is_the_models_own(
    own_greedy, target_of, drafter_values, make_structure, shape, evaluation
):
    target = target_of("llama", evaluation)
    built = drafters.build(drafter_values("grounded", target.vocab_size, target, mixer="attention"), target=target)
    assert decoded(target, built, "greedy", make_structure(shape, 3)).tokens == own_greedy("llama")


@pytest.mark.parametrize("shape", ["chain", "rows", "tree"])
def test_ngrams_are_accepted_somewhere(own_greedy, target_of, group_values, make_structure, shape):
    """Otherwise the identity above says little about committing copied tokens."""
    target, own = target_of("llama", "packed"), own_greedy("llama")
    structure, prompt = make_structure(shape, 4), [*PROMPT, *own, *PROMPT]
    generations = [
        decoded(target, drafters.build(group_values("drafter", name), target=target), "greedy", structure, None, prompt)
        for name in ("ngram", "none")
    ]
    assert generations[0].tokens == generations[1].tokens
    assert sum(row.accepted for row in generations[0].rounds) > 0
