"""Speculative greedy output is the model's own greedy output, token for token, in float64.

The reference is transformers' own `generate`, with its own cache and masks, on a tiny random model of every
architecture; drafters and verifiers come from the registries. Every drafter meets every structure and both ways of
evaluating it; verifiers and lengths come in turn, and the second tier has every drafter with every verifier and
structure.
"""

import pytest
from fixtures.decoding import decode, seeded
from fixtures.two_tiers import pairwise

from specdec.certification.greedy_identity import NEW_TOKENS, PROMPT, Scattered, own_greedy, tiny_target
from specdec.drafters.base import drafters
from specdec.structures.base import structures
from specdec.verifiers.base import verifiers

pytestmark = pytest.mark.usefixtures("models_opened_once")
LENGTH = 18  # longer than prompts and windows of the tiny models


def decoded(target, drafter, verifier, structure, reference=None, length=LENGTH):
    return decode(target, drafter, structure, PROMPT, length, verifier, reference=reference, **seeded())


# What a kind of model can break is masks, positions and the cache: every architecture is shown drafts of which any path
# may be right, in both ways of evaluating them. All else is tried on one architecture; drafters that read the target's
# states or run its layers on a second, and three kinds on Gemma 4, the last layers of which read the keys of earlier
# ones.
SHAPES = ("chain", "packed"), ("tree", "packed"), ("tree", "rows")
LOSSLESS = [name for name in verifiers.names() if verifiers.get(name).capabilities.lossless]
CASES = [
    (architecture, drafter, verifier, shape, evaluation, gamma)
    for architecture in ("llama", "gemma3")
    for drafter in drafters.names()
    for can in (drafters.get(drafter).capabilities,)
    if can.lossless and (architecture == "llama" or can.reads_states or can.runs_target)
    for verifier in LOSSLESS
    for shape in structures.names()
    for evaluation in (("packed",) if shape == "chain" else ("packed", "rows"))
    for gamma in ((1, 4) if shape == "chain" else (3,))
    if shape in can.fills & verifiers.get(verifier).capabilities.handles
]
IN_TURN = pairwise(CASES, [(0, 1), (1, 3), (1, 4), (2, 3), (3, 4), (3, 5)])
SHARED_KEYS = {("gemma4", drafter, "greedy", "chain", "packed", 4) for drafter in ("ngram", "small_model", "medusa")}
PRODUCT = {case for case in CASES if (case[0], case[4]) == ("llama", "packed") and case[5] > 1}


@pytest.mark.parametrize(("shape", "evaluation"), SHAPES)
def test_any_path_may_be_kept(architecture, make_structure, shape, evaluation):
    target, own = tiny_target(architecture, evaluation), own_greedy(architecture)
    assert len(set(own)) >= 6, "a text that repeats one token would hide nearly every fault"
    generation = decoded(target, Scattered(own), "greedy", make_structure(shape, 4), length=NEW_TOKENS)
    assert generation.tokens == own
    kept = [(row.tree, node) for row in generation.rounds for node in row.acceptance.path]
    assert len(kept) >= 5 and any(row.rejected for row in generation.rounds), "both must have happened"
    if shape != "chain":
        assert any(node != tree.children[tree.parents[node] + 1][0] for tree, node in kept), "not only first choices"


@pytest.mark.parametrize(
    ("architecture", "drafter", "verifier", "shape", "evaluation", "gamma"),
    [
        *sorted(IN_TURN | SHARED_KEYS),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in sorted(PRODUCT - IN_TURN)),
    ],
)
def test_output_is_the_models_own(
    architecture, drafter_values, make_structure, drafter, verifier, shape, evaluation, gamma
):
    target, own = tiny_target(architecture, evaluation), own_greedy(architecture)
    built = drafters.build(drafter_values(drafter, target.vocab_size, target), target=target)
    reference = own if built.capabilities.needs_reference else None
    generation = decoded(target, built, verifier, make_structure(shape, gamma), reference)
    assert generation.tokens == own[:LENGTH]
    assert sum(len(row.committed) for row in generation.rounds) == LENGTH
    if drafter == "oracle":
        accepted = sum(row.accepted for row in generation.rounds)
        assert 0 < accepted and any(row.rejected for row in generation.rounds), "both branches must have been taken"
