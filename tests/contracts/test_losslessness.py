"""Exact output law of every lossless verifier x structure, by enumeration on a table target.

Every random choice of the real `accept`, of the draft and of the loop is branched on (`specdec.certification`, which
`specdec.certify` uses as well), so the law is a finite sum and equals the target's to 1e-12, with no sampling error. A
new lossless verifier or structure is picked up from the registries; a structure without a way to fill it fails until it
has one in `table_drafts.FILL`.

Drafts that branch are filled by `grow`, in every way that it knows. They multiply what has to be enumerated, so they
are kept to two or three tokens where they are two deep. The first tier of the suite has every verifier with every
structure, and temperatures, cuts, ways and sizes in pairs; the second has the products.
"""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.two_tiers import two_tiers
from oracles import multi_draft
from torch import Tensor

from specdec.certification.enumeration import Unfollowed
from specdec.certification.exact import (
    CUTS,
    EXACT,
    bias,
    generated_law,
    largest_error,
    law_pair,
    own_law,
    round_law,
    target_law,
)
from specdec.certification.table_drafts import FILL, WAYS, TableDrafter, small_structure
from specdec.drafters.base import drafters
from specdec.errors import UsageError
from specdec.records import Acceptance, Draft, TextStart
from specdec.sampling import residual, sample
from specdec.structures.base import Structure, structures
from specdec.verifiers.base.contract import Verifier, VerifierCapabilities, verifiers

REFUSED = ("k_seq", "without_replacement")


LOSSLESS = [
    (verifier, structure)
    for verifier in verifiers.names()
    for structure in structures.names()
    if verifiers.get(verifier).capabilities.lossless and structure in verifiers.get(verifier).capabilities.handles
]
TEMPERATURES = (0.0, 0.5, 1.0, 2.0)
# A verifier for one-hot p only is asked for no more; a run of it with a temperature is refused.
AT_TEMPERATURES = [
    (verifier, structure, temperature)
    for verifier, structure in LOSSLESS
    for temperature in TEMPERATURES
    if temperature == 0 or not verifiers.get(verifier).capabilities.greedy_only
    if structure == "chain" and (verifier != "k_seq" or temperature == 1)  # the same function as speculative sampling
]
BRANCHING = [
    (verifier, structure, way)
    for verifier, structure in LOSSLESS
    if structure != "chain"
    for way in WAYS.get(structure, ())
    if (verifier, way) != REFUSED
]
TYPICAL = {"typical_p": ({"typical_p": 0.3}, {"typical_p": 0.5})}


def pair(size, temperature, cut) -> tuple[Any, Tensor]:
    """A target and a q [V, V], standardised at one temperature, each with its own cut."""
    return law_pair(size, temperature, (CUTS | TYPICAL)[cut])


@pytest.mark.parametrize(("verifier", "structure"), LOSSLESS)
def test_there_is_a_way_to_enumerate(verifier, structure):
    assert structure in FILL, (
        f"verifier {verifier!r} says that it is lossless for {structure!r}, and nothing here can check it: "
        "add a function to FILL that fills this structure from a table"
    )


ROUNDS = [
    (*case, way, gamma, cut) for case, way, gamma, cut in product(AT_TEMPERATURES, WAYS["chain"], (1, 2, 3), CUTS)
]


@pytest.mark.parametrize(("verifier", "structure", "temperature", "way", "gamma", "cut"), two_tiers(ROUNDS))
def test_a_whole_round_has_the_targets_law(enumeration, verifier, structure, temperature, way, gamma, cut):
    rule = verifiers.build({"name": verifier})
    target, q = pair(3 if gamma > 2 else 4, temperature, cut)
    shape = small_structure(structure, gamma)
    assert bias(enumeration, target, TableDrafter(q, way), rule, shape) < EXACT


SIBLINGS = [(*case, cut) for case, cut in product(BRANCHING, CUTS)]


@pytest.mark.parametrize(("verifier", "structure", "way", "cut"), two_tiers(SIBLINGS))
def test_siblings_leave_the_targets_law(enumeration, verifier, structure, way, cut):
    rule = verifiers.build({"name": verifier})
    target, q = pair(4, 0.0 if rule.capabilities.greedy_only else 1.0, cut)
    shape = small_structure(structure, 1)
    assert bias(enumeration, target, TableDrafter(q, way), rule, shape, roots=[3]) < EXACT


@pytest.mark.parametrize(("verifier", "structure"), LOSSLESS)
def test_typical_sampling_leaves_the_targets_law(enumeration, verifier, structure):
    """Typical sampling of both laws; of the target's alone it is a cut of the other tests."""
    rule = verifiers.build({"name": verifier})
    target, q = pair(4, 0.0 if rule.capabilities.greedy_only else 1.0, "typical_p")
    shape = small_structure(structure, 2 if structure == "chain" else 1)
    drafter = TableDrafter(q, WAYS[structure][0])
    assert bias(enumeration, target, drafter, rule, shape, roots=[3]) < EXACT


BRANCHES = [(*case, start) for case, start in product(BRANCHING, ((2, 0, "uncut"), (2, 1, "uncut"), (3, 2, "top_k")))]


@pytest.mark.parametrize(("verifier", "structure", "way", "start"), two_tiers(BRANCHES))
def test_branches_leave_the_targets_law(enumeration, verifier, structure, way, start):
    size, root, cut = start
    rule = verifiers.build({"name": verifier})
    target, q = pair(size, 0.0 if rule.capabilities.greedy_only else 1.0, cut)
    shape = small_structure(structure, 2)
    assert bias(enumeration, target, TableDrafter(q, way), rule, shape, roots=[root]) < EXACT


@pytest.mark.parametrize(("size", "gamma"), [(3, 1), (2, 2)])
@pytest.mark.parametrize("verifier", [verifier for verifier, structure in LOSSLESS if structure == "chain"])
def test_two_rounds_have_the_targets_law(enumeration, verifier, size, gamma):
    rule = verifiers.build({"name": verifier})
    target, q = pair(size, 0.0 if rule.capabilities.greedy_only else 1.0, "uncut")
    assert bias(enumeration, target, TableDrafter(q), rule, small_structure("chain", gamma), rounds=2) < EXACT


def test_supports_are_unequal_where_they_should_be():
    for cut in ("top_k", "top_p", "p_cut", "q_cut", "typical_p"):
        target, q = pair(4, 1.0, cut)
        assert not np.array_equal(target_law(target) > 0, q.numpy() > 0)
    p = target_law(pair(4, 1.0, "top_k")[0])
    q = pair(4, 1.0, "top_k")[1].numpy()
    assert ((p > 0) & (q == 0)).any() and ((p == 0) & (q > 0)).any()


LOOPS = [
    (verifier, structure, way, sizes)
    for verifier, structure in LOSSLESS
    for way in WAYS.get(structure, ())
    for sizes in ([(3, 1, 3), (2, 2, 4), (2, 3, 3)] if structure == "chain" else [(2, 2, 3)])
    if structure == "chain" or (verifier, way) != REFUSED
]


@pytest.mark.parametrize(("verifier", "structure", "way", "sizes"), two_tiers(LOOPS))
def test_the_loop_writes_the_targets_law(enumeration, verifier, structure, way, sizes):
    size, gamma, length = sizes
    rule = verifiers.build({"name": verifier})
    target, q = pair(size, 0.0 if rule.capabilities.greedy_only else 1.0, "uncut")
    shape = small_structure(structure, gamma)
    law = generated_law(enumeration, target, TableDrafter(q, way), rule, shape, [1], length)
    assert largest_error(law, own_law(target, [1], length)) < EXACT


LOOKS_UP = [
    name
    for name in drafters.names()
    if drafters.get(name).capabilities.lossless
    if not drafters.get(name).capabilities.needs_reference
    and name != "recorded"  # these are for greedy runs, tested elsewhere
]


FILLED = [
    (*case, drafter)
    for case, drafter in product(LOSSLESS, LOOKS_UP)
    if case[1] in drafters.get(drafter).capabilities.fills
]


@pytest.mark.parametrize(("verifier", "structure", "drafter"), two_tiers(FILLED, [(0, 1), (1, 2)]))
def test_registered_drafters_leave_the_law_alone(
    enumeration, small_target, drafter_values, verifier, structure, drafter
):
    """With a prompt that n-grams match. Three tokens: a first round of two, and what may follow it. Heads and parts of
    the target, which draft any token, are cut to two, and so is the target: not to the same. Independent siblings are
    under test with the drafters that draw them.
    """
    rule = verifiers.build({"name": verifier})
    can = drafters.get(drafter).capabilities
    top_k = 2 if can.reads_states or can.runs_target else None
    temperature = 0.0 if rule.capabilities.greedy_only else 1.0
    target = small_target(drafter, 3, seed=5, temperature=temperature, top_k=top_k)
    values = drafter_values(drafter, 3, target)
    if verifier == "k_seq" and ("siblings" in values or structure == "chain"):
        pytest.skip("draws are without replacement, or as in speculative sampling")
    proposes = drafters.build(values, target=target)
    prompt, length = [0, 1, 2, 0, 1, 1, 0, 1], 3
    try:
        law = generated_law(enumeration, target, proposes, rule, small_structure(structure, 2), prompt, length)
    except UsageError as refusal:
        assert verifier == "k_seq" and "drawn independently" in str(refusal)
        pytest.skip("draws are without replacement")
    assert largest_error(law, own_law(target, prompt, length)) < EXACT


@pytest.mark.parametrize("structure", ["chain", "tree"])
def test_heads_that_attend_over_the_draft_leave_the_law_alone(enumeration, small_target, drafter_values, structure):
    """A variant of the registered grounded heads: their law depends on all tokens of the path, by attention."""
    target = small_target("grounded", 3, seed=5, temperature=1.0, top_k=2)
    proposes = drafters.build(drafter_values("grounded", 3, target, mixer="attention"), target=target)
    rule, prompt = verifiers.build({"name": "speculative_sampling"}), [0, 1, 2, 0, 1, 1, 0, 1]
    law = generated_law(enumeration, target, proposes, rule, small_structure(structure, 2), prompt, 3)
    assert largest_error(law, own_law(target, prompt, 3)) < EXACT


# The harness itself: it must see a bias, and the numbers it gives must be the known ones.


class Biased(Verifier):
    """Speculative sampling with one mistake."""

    capabilities = VerifierCapabilities(handles=frozenset({"chain"}))

    def __init__(self, mistake: str) -> None:
        self.mistake = mistake

    def accept(self, draft: Draft, p: Tensor, generator: torch.Generator | None) -> Acceptance:
        q = draft.q
        if self.mistake == "wrong_q":  # e.g. the law before top-k, or that of another temperature
            q = (q + 0.05) / (q + 0.05).sum(-1, keepdim=True)
        accepted = 0
        for node, token in enumerate(draft.tokens.tolist()):
            ratio = p[node, token] / q[node, token]
            if self.mistake == "inverted":
                ratio = 1 / ratio
            if self.mistake == "lenient":
                ratio = ratio / 0.8
            if not torch.rand((), generator=generator) < ratio:
                break
            accepted += 1
        law = p[accepted]
        if accepted < len(draft) and self.mistake != "residual_is_p":
            law = residual(law, q[accepted])
        return Acceptance(
            tuple(range(accepted)), int(sample(law, generator)), accepted < len(draft), tuple(draft.tokens.tolist())
        )


@pytest.mark.parametrize("mistake", ["residual_is_p", "wrong_q", "inverted", "lenient"])
def test_a_biased_rule_is_caught(enumeration, mistake):
    target, q = pair(3, 1.0, "uncut")
    drafter, shape = TableDrafter(q), small_structure("chain", 2)
    assert bias(enumeration, target, drafter, Biased(""), shape) < EXACT
    assert bias(enumeration, target, drafter, Biased(mistake), shape) > 1e-3


def test_randomness_outside_the_harness_is_caught(enumeration, table):
    class Sneaky(Biased):
        def accept(self, draft: Draft, p: Tensor, generator: torch.Generator | None) -> Acceptance:
            torch.empty(3).uniform_(generator=generator)
            return super().accept(draft, p, generator)

    target = table([[0.5, 0.5], [0.5, 0.5]], temperature=1.0)
    drafter, shape = (
        TableDrafter(torch.tensor([[0.6, 0.4], [0.4, 0.6]]).double()),
        small_structure("chain", 1),
    )
    with pytest.raises(Unfollowed, match="random"):
        bias(enumeration, target, drafter, Sneaky(""), shape)


P, Q = [0.5, 0.3, 0.15, 0.05], [0.2, 0.5, 0.1, 0.2]  # of theory.md 1.4's table
RULES = [
    ("speculative_sampling", "independent", multi_draft.multi_round, [0.755, 0.819]),
    ("speculative_sampling", "without_replacement", multi_draft.without_replacement, [0.814821, 0.939048, 1.0]),
    ("k_seq", "independent", multi_draft.k_seq, [0.788098]),
]
OF_THREE = pytest.param(
    "k_seq", "independent", multi_draft.k_seq, [0.788098, 0.858519], marks=pytest.mark.slow, id="k_seq 3"
)


@pytest.mark.parametrize(
    ("verifier", "way", "theory", "expected"),
    [*(pytest.param(*case, id=" ".join(case[:2])) for case in RULES), OF_THREE],
)
def test_the_chance_that_one_of_several_drafts_is_accepted(enumeration, table, verifier, way, theory, expected):
    """theory.md 1.4's table, through the real rules; the oracle computes it another way."""
    target, q = table([P] * 4, temperature=1.0), torch.tensor([Q] * 4, dtype=torch.float64)
    for drafts, chance in enumerate(expected, start=2):
        shape = structures.build({"name": "rows", "k": drafts, "w": 1, "budget": 8})
        rule = verifiers.build({"name": verifier})
        law = round_law(enumeration, target, TableDrafter(q, way), rule, shape, 0)
        accepted = sum(weight for committed, weight in law.items() if len(committed) == 2)
        assert accepted == pytest.approx(chance, abs=1e-6)
        assert accepted == pytest.approx(theory(P, Q, drafts).acceptance, abs=1e-9)
        first = [sum(weight for committed, weight in law.items() if committed[0] == token) for token in range(4)]
        assert first == pytest.approx(P, abs=EXACT)


def test_independent_tests_with_one_residual_are_caught(enumeration, table):
    """theory.md 1.4: the tempting rule, which leaves p as it is between the tests, emits another law."""

    class Naive(Verifier):
        capabilities = VerifierCapabilities(handles=frozenset({"rows"}))

        def __init__(self) -> None:
            pass

        def accept(self, draft: Draft, p: Tensor, generator: torch.Generator | None) -> Acceptance:
            tokens = tuple(draft.tokens.tolist())
            for child in draft.tests[0]:
                if torch.rand((), generator=generator) * draft.q[child, tokens[child]] < p[0, tokens[child]]:
                    return Acceptance((child,), int(sample(p[child + 1], generator)), False, tokens)
            return Acceptance((), int(sample(residual(p[0], draft.q[0]), generator)), True, tokens)

    target, q = table([P] * 4, temperature=1.0), torch.tensor([Q] * 4, dtype=torch.float64)
    shape = structures.build({"name": "rows", "k": 2, "w": 1, "budget": 8})
    law = round_law(enumeration, target, TableDrafter(q), Naive(), shape, 0)
    first = [sum(weight for committed, weight in law.items() if committed[0] == token) for token in range(4)]
    assert first == pytest.approx([0.375, 0.405, 0.1525, 0.0675], abs=EXACT)
    assert bias(enumeration, target, TableDrafter(q), Naive(), shape) > 1e-2


@pytest.mark.parametrize("way", ["independent", "without_replacement"])
def test_a_sibling_that_reports_another_q_is_caught(enumeration, way):
    """Drawn without replacement and told as if it were from the whole law, or the reverse."""

    class Swapped(TableDrafter):
        def draft(self, structure: Structure) -> Draft:
            draft = super().draft(structure)
            q = draft.q[:1].expand(len(draft), -1).clone()
            if self.way == "independent":
                q[1:, draft.tokens[0]] = 0.0
            return Draft(draft.tokens, draft.tree, q / q.sum(-1, keepdim=True), draws=draft.draws)

    target, q = pair(4, 1.0, "uncut")
    rule = verifiers.build({"name": "speculative_sampling"})
    assert bias(enumeration, target, Swapped(q, way), rule, small_structure("tree", 1)) > 1e-3


@pytest.mark.parametrize("verifier", [name for name in verifiers.names() if verifiers.get(name).capabilities.lossless])
def test_the_greedy_form_decides_as_the_rule_does_where_p_is_one_hot(table, random_law, group_values, verifier):
    """The run uses it at temperature 0; also for drafts whose q is not one-hot."""
    rule = verifiers.build(group_values("verifier", verifier))
    target, q = table(random_law(4, 5), temperature=0.0), random_law(4, 6)
    generator = torch.Generator().manual_seed(1)
    ways = [(structure, way) for name, structure in LOSSLESS if name == verifier for way in WAYS[structure]]
    for structure, way in ways:
        accepted = set()
        for root in range(4):
            for _ in range(0 if (verifier, way) == REFUSED and structure != "chain" else 8):
                target.start(TextStart([root], 0))
                draft = FILL[structure](small_structure(structure, 3), q, root, generator, way)
                p = target.verify(draft)
                decision = rule.for_greedy().accept(draft, p, None)
                assert decision == rule.accept(draft, p, generator)
                accepted.add(len(decision.path))
        assert len(accepted) > 1 or (verifier, way) == REFUSED
