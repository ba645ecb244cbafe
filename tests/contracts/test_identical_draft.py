"""A draft from the target's own law: what each rule makes of it, exactly, by enumeration on small tables.

Under min(1, p/q) and every lossless rule built on it nothing is ever rejected. Rules that compare the draft with a
choice of the target's own, the most likely token or an independent draw, do reject some of it, and so does Medusa's
typical acceptance (theory.md 1.2).
"""

import math

import pytest
import torch

from specdec.certification.exact import EXACT, target_law
from specdec.records import Draft, chain_tree
from specdec.sampling import one_hot, sample
from specdec.structures.base import structures
from specdec.tree_building.siblings import grow, growing
from specdec.verifiers.base import verifiers

P = [0.5, 0.3, 0.15, 0.05]
SAMPLING_RULES = [
    name
    for name in verifiers.names()
    if verifiers.get(name).capabilities.lossless and not verifiers.get(name).capabilities.greedy_only
]
HOW = {"whole": {}, "cool": {"temperature": 0.5, "top_p": 0.6}}


def accepted_law(enumeration, rule, q, p, gamma):
    """Return the chance of every number of accepted tokens for chains of `gamma` tokens drawn from q [V, V]; the rule
    judges them by p, a function of the token before each position.
    """

    def run():
        text, laws = [0], []
        for _ in range(gamma):
            laws.append(q[text[-1]])
            text.append(int(sample(laws[-1], enumeration.generator)))
        draft = Draft(torch.tensor(text[1:]), chain_tree(gamma), torch.stack(laws))
        decision = rule.accept(draft, torch.stack([p(token) for token in text]), enumeration.generator)
        assert decision.rejected == (len(decision.path) < gamma)
        return len(decision.path)

    return enumeration.law(run)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("verifier", SAMPLING_RULES)
def test_a_sampling_rule_never_rejects_a_chain_of_the_targets_own_law(enumeration, table, random_law, verifier, how):
    p = torch.tensor(target_law(table(random_law(3, 5), **{"temperature": 1.0} | HOW[how])))
    law = accepted_law(enumeration, verifiers.build({"name": verifier}), p, lambda token: p[token], 3)
    assert law == pytest.approx({3: 1.0}, abs=EXACT)


@pytest.mark.parametrize(
    ("verifier", "way"),
    [
        ("speculative_sampling", "independent"),
        ("speculative_sampling", "without_replacement"),
        ("k_seq", "independent"),
    ],
)
def test_one_of_several_siblings_of_the_targets_own_law_always_passes(enumeration, random_law, verifier, way):
    """The first that is tested, so that more of them gain nothing."""
    p = random_law(3, 5)
    rule, shape = verifiers.build({"name": verifier}), structures.build({"name": "rows", "k": 2, "w": 1, "budget": 9})

    def run():
        growth = growing(shape, way, "table", enumeration.generator)
        draft = grow(growth, lambda asked: p[[0] * len(asked.nodes)])
        judged = torch.stack([p[0], *(p[token] for token in draft.tokens.tolist())])
        return len(rule.accept(draft, judged, enumeration.generator).path)

    assert enumeration.law(run)[1] == pytest.approx(1.0, abs=EXACT)


def test_exact_match_with_the_most_likely_token_rejects_the_rest(enumeration):
    """A draft drawn at temperature 1 against argmax p passes with max p, each of its tokens anew."""
    p = torch.tensor(P, dtype=torch.float64).expand(4, 4)
    for values in ({"name": "greedy"}, {"name": "blockwise", "acceptance": "exact", "top_k": 1, "threshold": 0.0}):
        rule = verifiers.build(values | ({} if values["name"] == "greedy" else {"minimum_block": 1}))
        law = accepted_law(enumeration, rule, p, lambda token: p[token], 2)
        assert law == pytest.approx({0: 0.5, 1: 0.25, 2: 0.25}, abs=EXACT)


def test_exact_match_with_a_draw_of_the_targets_own_rejects_most_of_it(enumeration):
    """Draft and target drawn independently of each other meet with chance sum p^2, 0.365 here, although their laws are
    one; the Medusa paper ascribes this to rejection sampling, which accepts all.
    """
    p = torch.tensor(P, dtype=torch.float64).expand(4, 4)

    def drawn(token):
        return one_hot(sample(p[token], enumeration.generator), 4).double()

    law = accepted_law(enumeration, verifiers.build({"name": "greedy"}), p, drawn, 1)
    assert law == pytest.approx({0: 0.635, 1: 0.365}, abs=EXACT)


def test_typical_acceptance_rejects_what_the_target_itself_would_rarely_write(enumeration, group_values):
    """It passes the tokens above min(0.09, 0.3 exp(-H)), 95% of the mass here, and all of a flat law's."""
    p = torch.tensor(P, dtype=torch.float64).expand(4, 4)
    rule = verifiers.build(group_values("verifier", "typical"))
    law = accepted_law(enumeration, rule, p, lambda token: p[token], 2)
    threshold = min(0.09, 0.3 * math.exp(sum(value * math.log(value) for value in P)))
    mass = sum(value for value in P if value > threshold)
    assert mass == pytest.approx(0.95)
    assert law == pytest.approx({0: 0.05, 1: 0.05 * mass, 2: mass**2}, abs=EXACT)
    flat = torch.full((4, 4), 0.25, dtype=torch.float64)
    assert accepted_law(enumeration, rule, flat, lambda token: flat[token], 1) == pytest.approx({1: 1.0})
