"""Exact output law of every lossless verifier x structure, by enumeration on a table target.

Every random choice of the real `accept`, of the draft and of the loop is branched on (`specdec.certification`, which
`specdec.certify` uses as well), so the law is a finite sum and equals the target's to 1e-12, with no sampling error. A
new lossless verifier or structure is picked up from the registries; a structure without a way to fill it fails until it
has one in `exact.FILL`.

Drafts that branch are filled by `grow`, in every way that it knows. They multiply what has to be enumerated, so they
are kept to two or three tokens where they are two deep. Every verifier meets every structure, filled in every way;
temperatures, cuts and sizes take turns.
"""

from itertools import product

import pytest
import torch
from fixtures.two_tiers import pairwise
from oracles import multi_draft
from torch import Tensor

from specdec.certification.enumeration import Unfollowed
from specdec.certification.exact import (
    CUTS,
    EXACT,
    FILL,
    PROMPT,
    WAYS,
    TableDrafter,
    arm_of,
    bias,
    law_pair,
    round_law,
    small_structure,
    target_law,
    text_bias,
)
from specdec.drafters.base import drafters
from specdec.errors import UsageError
from specdec.records import Acceptance, Draft, TextStart
from specdec.sampling import residual, sample
from specdec.structures.base import Structure, structures
from specdec.verifiers.base import Verifier, VerifierCapabilities, verifiers

pytestmark = pytest.mark.usefixtures("models_opened_once")
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


def rule_and_pair(verifier, size, cut, temperature=1.0):
    """A verifier, a target, and a q [V, V]; both laws are standardised at one temperature, each with its own cut."""
    rule = verifiers.build({"name": verifier})
    return rule, *law_pair(size, 0.0 if rule.capabilities.greedy_only else temperature, CUTS[cut])


def test_there_is_a_way_to_enumerate():
    missing = {structure for _, structure in LOSSLESS} - set(FILL)
    assert not missing, "a verifier says that it is lossless for these: add functions to FILL that fill them"


ROUNDS = [
    (*case, way, gamma, cut) for case, way, gamma, cut in product(AT_TEMPERATURES, WAYS["chain"], (1, 2, 3), CUTS)
]


@pytest.mark.parametrize(("verifier", "structure", "temperature", "way", "gamma", "cut"), sorted(pairwise(ROUNDS)))
def test_a_whole_round_has_the_targets_law(enumeration, verifier, structure, temperature, way, gamma, cut):
    rule, target, q = rule_and_pair(verifier, 3 if gamma > 2 else 4, cut, temperature)
    assert bias(enumeration, arm_of(target, TableDrafter(q, way), rule, small_structure(structure, gamma))) < EXACT


SIBLINGS = [
    (*case, cut)
    for turn, case in enumerate(BRANCHING)
    for cut in (("top_k", "top_p", "p_cut", "q_cut")[turn % 4], "uncut")[: 1 + (case[0] == "speculative_sampling")]
]


@pytest.mark.parametrize(("verifier", "structure", "way", "cut"), SIBLINGS)
def test_siblings_leave_the_targets_law(enumeration, verifier, structure, way, cut):
    rule, target, q = rule_and_pair(verifier, 4, cut)
    shape = small_structure(structure, 1)
    assert bias(enumeration, arm_of(target, TableDrafter(q, way), rule, shape), roots=[3]) < EXACT


STARTS = (2, 0, "uncut"), (2, 1, "uncut"), (3, 2, "top_k")
BRANCHES = [(*case, *STARTS[turn % 3]) for turn, case in enumerate(BRANCHING)]


@pytest.mark.parametrize(("verifier", "structure", "way", "size", "root", "cut"), BRANCHES)
def test_branches_leave_the_targets_law(enumeration, verifier, structure, way, size, root, cut):
    rule, target, q = rule_and_pair(verifier, size, cut)
    shape = small_structure(structure, 2)
    assert bias(enumeration, arm_of(target, TableDrafter(q, way), rule, shape), roots=[root]) < EXACT


def test_supports_are_unequal_where_they_should_be():
    for cut in ("top_k", "top_p", "p_cut", "q_cut"):
        target, q = law_pair(4, 1.0, CUTS[cut])
        p, q = target_law(target) > 0, q.numpy() > 0
        assert (p != q).any() and (cut != "top_k" or ((p & ~q).any() and (q & ~p).any()))


LOOPS = [
    (verifier, "chain", way, *sizes)
    for verifier, structure in LOSSLESS
    if structure == "chain"
    for way, sizes in product(WAYS["chain"], ((3, 1, 3), (2, 2, 4), (2, 3, 3)))
]
LOOPS = sorted(pairwise(LOOPS, [(0, 2), (0, 3), (0, 4), (2, 4)]))
LOOPS += [(*case, 2, 2, 3) for case in sorted(pairwise(BRANCHING, [(0, 1), (1, 2)]), reverse=True)]


@pytest.mark.parametrize(("verifier", "structure", "way", "size", "gamma", "length"), LOOPS)
def test_the_loop_writes_the_targets_law(enumeration, verifier, structure, way, size, gamma, length):
    """Texts take several rounds, the last of which is cut."""
    rule, target, q = rule_and_pair(verifier, size, "uncut")
    shape = small_structure(structure, gamma)
    assert text_bias(enumeration, arm_of(target, TableDrafter(q, way), rule, shape), [1], length) < EXACT


# Every drafter in every structure under the rule of sampling, and each other rule with a drafter that fills them all:
# what a rule sees of a drafter are a draft and its q. The second tier has the product.
FILLED = [
    pytest.param(verifier, structure, name, marks=() if known else pytest.mark.slow)
    for name in drafters.names()
    for verifier, structure in LOSSLESS
    for known in (verifier == "speculative_sampling" or name == "retrieval",)
    if structure in drafters.get(name).capabilities.fills and drafters.get(name).capabilities.lossless
    if not drafters.get(name).capabilities.needs_reference and name != "recorded"  # for greedy runs, tested elsewhere
]


@pytest.mark.parametrize(("verifier", "structure", "drafter"), FILLED)
def test_registered_drafters_leave_the_law_alone(
    enumeration, small_target, drafter_values, verifier, structure, drafter
):
    """With a prompt that n-grams match. Three tokens: a first round of two, and what may follow it. The target and the
    drafters of full laws are cut to two tokens, not to the same.
    """
    rule = verifiers.build({"name": verifier})
    target = small_target(drafter, 3, seed=5, temperature=0.0 if rule.capabilities.greedy_only else 1.0, top_k=2)
    proposes = drafters.build(drafter_values(drafter, 3, target), target=target)
    try:
        arm = arm_of(target, proposes, rule, small_structure(structure, 2))
        error = text_bias(enumeration, arm, PROMPT, 3)
    except UsageError as refusal:
        assert verifier == "k_seq" and "drawn independently" in str(refusal)
        pytest.skip("draws are without replacement")
    assert error < EXACT


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


def test_a_biased_rule_is_caught(enumeration):
    target, q = law_pair(3, 1.0, CUTS["uncut"])
    for mistake in ("", "residual_is_p", "wrong_q", "inverted", "lenient"):
        arm = arm_of(target, TableDrafter(q), Biased(mistake), small_structure("chain", 1))
        error = bias(enumeration, arm, roots=[2])
        assert error > 1e-3 if mistake else error < EXACT, mistake


def test_randomness_outside_the_harness_is_caught(enumeration):
    class Sneaky(Biased):
        def accept(self, draft: Draft, p: Tensor, generator: torch.Generator | None) -> Acceptance:
            torch.empty(3).uniform_(generator=generator)
            return super().accept(draft, p, generator)

    target, q = law_pair(2, 1.0, CUTS["uncut"])
    with pytest.raises(Unfollowed, match="random"):
        bias(enumeration, arm_of(target, TableDrafter(q), Sneaky(""), small_structure("chain", 1)))


P, Q = [0.5, 0.3, 0.15, 0.05], [0.2, 0.5, 0.1, 0.2]  # of theory.md 1.4's table
RULES = [
    ("speculative_sampling", "independent", multi_draft.multi_round, [0.755, 0.819]),
    ("speculative_sampling", "without_replacement", multi_draft.without_replacement, [0.814821, 0.939048]),
    ("k_seq", "independent", multi_draft.k_seq, [0.788098]),
]


def first_of(law):
    return [sum(weight for committed, weight in law.items() if committed[0] == token) for token in range(4)]


@pytest.mark.parametrize(
    ("verifier", "way", "theory", "expected"), [pytest.param(*case, id=" ".join(case[:2])) for case in RULES]
)
def test_the_chance_that_one_of_several_drafts_is_accepted(enumeration, table, verifier, way, theory, expected):
    """theory.md 1.4's table, through the real rules; the oracle computes it another way."""
    target, q = table([P] * 4, temperature=1.0), torch.tensor([Q] * 4, dtype=torch.float64)
    for drafts, chance in enumerate(expected, start=2):
        shape = structures.build({"name": "rows", "k": drafts, "w": 1, "budget": 8})
        rule = verifiers.build({"name": verifier})
        law = round_law(enumeration, arm_of(target, TableDrafter(q, way), rule, shape), 0)
        accepted = sum(weight for committed, weight in law.items() if len(committed) == 2)
        assert accepted == pytest.approx(chance, abs=1e-6)
        assert accepted == pytest.approx(theory(P, Q, drafts), abs=1e-9)
        assert first_of(law) == pytest.approx(P, abs=EXACT)


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
    first = first_of(round_law(enumeration, arm_of(target, TableDrafter(q), Naive(), shape), 0))
    assert first == pytest.approx([0.375, 0.405, 0.1525, 0.0675], abs=EXACT)


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

    rule, target, q = rule_and_pair("speculative_sampling", 3, "uncut")
    assert bias(enumeration, arm_of(target, Swapped(q, way), rule, small_structure("tree", 1))) > 1e-3


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
            for _ in range(0 if (verifier, way) == REFUSED and structure != "chain" else 3):
                target.start(TextStart([root], 0))
                draft = FILL[structure](small_structure(structure, 3), q, root, generator, way)
                p = target.verify(draft)
                decision = rule.for_greedy().accept(draft, p, None)
                assert decision == rule.accept(draft, p, generator)
                accepted.add(len(decision.path))
        assert len(accepted) > 1 or (verifier, way) == REFUSED
