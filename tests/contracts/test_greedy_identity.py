"""Speculative greedy output is the model's own greedy output, token for token, in float64.

The reference is transformers' own `generate`, with its own cache and masks, on a tiny random model of every
architecture; drafters and verifiers come from the registries. The first tier of the suite has every drafter with every
structure and every verifier, architectures and ways of evaluating in turn; the second has the whole product.
"""

from functools import cache

import pytest
from fixtures.two_tiers import two_tiers

from specdec.certification import greedy_identity
from specdec.certification.greedy_identity import NEW_TOKENS, PROMPT, Scattered, own_greedy, tiny_target
from specdec.drafters.base import drafters
from specdec.structures.base import structures
from specdec.verifiers.base.contract import verifiers


@cache
def rule(name):
    return verifiers.build({"name": name})


def decoded(target, drafter, verifier, structure, reference=None, prompt=PROMPT):
    return greedy_identity.decoded(target, drafter, rule(verifier), structure, reference, prompt)


# What a kind of model can break is masks, positions and the cache: every architecture is shown drafts of which any path
# may be right, in both ways of evaluating them. All else is tried on two architectures, and
# drafters of three kinds on Gemma 4, the last layers of which read the keys of earlier ones.
SHAPES = ("chain", "packed"), *((shape, how) for shape in ("rows", "tree") for how in ("packed", "rows"))
COMBINATIONS = [
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
CASES = [
    (architecture, *case, gamma)
    for case in COMBINATIONS
    for architecture in ("gemma3", "llama")
    for gamma in ((1, 4) if case[2] == "chain" else (3,))
] + [("gemma4", drafter, "greedy", "chain", "packed", 4) for drafter in ("ngram", "small_model", "medusa")]


def test_the_texts_do_not_collapse(architecture):
    """A model that repeats one token would hide nearly every fault."""
    assert len(set(own_greedy(architecture))) >= 6


@pytest.mark.parametrize(("shape", "evaluation"), SHAPES)
def test_any_path_may_be_kept(architecture, make_structure, shape, evaluation):
    target, own = tiny_target(architecture, evaluation), own_greedy(architecture)
    generation = decoded(target, Scattered(own), "greedy", make_structure(shape, 4))
    assert generation.tokens == own
    kept = [(row.tree, node) for row in generation.rounds for node in row.acceptance.path]
    assert len(kept) >= 5 and any(row.rejected for row in generation.rounds), "both must have happened"
    if shape != "chain":
        assert any(node != tree.children[tree.parents[node] + 1][0] for tree, node in kept), "not only first choices"


@pytest.mark.parametrize(("architecture", "drafter", "verifier", "shape", "evaluation", "gamma"), two_tiers(CASES))
def test_output_is_the_models_own(
    architecture, drafter_values, make_structure, drafter, verifier, shape, evaluation, gamma
):
    target, own = tiny_target(architecture, evaluation), own_greedy(architecture)
    built = drafters.build(drafter_values(drafter, target.vocab_size, target), target=target)
    reference = own if built.capabilities.needs_reference else None
    generation = decoded(target, built, verifier, make_structure(shape, gamma), reference)
    assert generation.tokens == own
    assert sum(len(row.committed) for row in generation.rounds) == NEW_TOKENS
    if drafter == "oracle":
        accepted = sum(row.accepted for row in generation.rounds)
        assert 0 < accepted and any(row.rejected for row in generation.rounds), "both branches must have been taken"


@pytest.mark.parametrize(("shape", "evaluation"), SHAPES)
def test_output_of_heads_that_attend_over_the_draft_is_the_models_own(
    drafter_values, make_structure, shape, evaluation
):
    target = tiny_target("llama", evaluation)
    built = drafters.build(drafter_values("grounded", target.vocab_size, target, mixer="attention"), target=target)
    assert decoded(target, built, "greedy", make_structure(shape, 3)).tokens == own_greedy("llama")
