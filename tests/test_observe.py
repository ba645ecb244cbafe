"""Departures of rounds by simulation and by hand."""

import math

import pytest
import torch
from fixtures.decoding import decode, seeded
from fixtures.slow_drafters import SlowDrafter

from specdec.observe import Decided, departure
from specdec.records import Acceptance, Draft, Tree, chain_tree
from specdec.sampling import sample
from specdec.verifiers import verifiers

P = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.3, 0.2]], dtype=torch.float64)
Q = torch.tensor([[0.2, 0.5, 0.1, 0.2], [0.4, 0.1, 0.4, 0.1]], dtype=torch.float64)


ROUNDS = 300


def decided(rule, draft, p, chain=True, generator=None, room=99):
    acceptance = rule.accept(draft, p, generator)
    committed = (*(acceptance.tokens[node] for node in acceptance.path), acceptance.next_token)[:room]
    return acceptance, departure(rule, Decided(draft, p, acceptance, committed, chain))


def test_a_chain_of_point_masses_by_hand(group_values):
    rule = verifiers.build(group_values("verifier", "typical"))
    # 0.3 and 0.3 pass the thresholds 0.09 and 0.083; then argmax p = 2. All emitted tokens are points.
    _, all_kept = decided(rule, Draft(torch.tensor([1, 2]), chain_tree(2)), P)
    assert all_kept.tv == pytest.approx((0.7, 0.7, 0.7))
    assert all_kept.otherwise == pytest.approx(1 - 0.3 * 0.3)
    # 0.05 does not pass; a lossless rule would have kept it once in twenty times.
    _, none_kept = decided(rule, Draft(torch.tensor([3, 2]), chain_tree(2)), P)
    assert none_kept.tv == pytest.approx((0.5,)) and none_kept.otherwise == pytest.approx(0.05)
    # What a cut hides counts for nothing.
    _, cut = decided(rule, Draft(torch.tensor([1, 2]), chain_tree(2)), P, room=1)
    assert cut.tv == pytest.approx((0.7,)) and cut.otherwise == pytest.approx(0.7)
    _, empty = decided(rule, Draft(torch.empty(0, dtype=torch.long), chain_tree(0)), P[:1])
    assert empty.tv == pytest.approx((0.5,)) and empty.otherwise is None


@pytest.mark.parametrize("draws", [None, ((0, 1, 0), (2, 3, 3), (), (), ())])
@pytest.mark.parametrize("drawn", [False, True])
def test_a_lossless_rule_agrees_as_often_as_its_own_enumeration_says(
    enumeration, random_law, group_values, drawn, draws
):
    """Trees of which siblings are points, or were drawn without replacement, or independently with repeats."""
    strict = verifiers.build({"name": "speculative_sampling"})
    rule = verifiers.build(group_values("verifier", "typical", epsilon=0.3))
    paths = set()
    for seed in range(6):
        p, q = random_law(5, seed), random_law(5, seed + 50).clone()
        tokens = torch.tensor([0, 2, 0, 1])
        if draws is None:
            q[1, tokens[0]] = q[3, tokens[2]] = 0.0
        else:
            q[1], q[3] = q[0], q[2]
        q /= q.sum(-1, keepdim=True)
        draft = Draft(tokens, Tree((-1, -1, 0, 0)), q[:4] if drawn else None, draws=draws if drawn else None)
        acceptance, kept = decided(rule, draft, p, chain=False)

        def once(draft=draft, p=p):
            return strict.accept(draft, p, enumeration.generator).path

        law = enumeration.law(once)
        assert kept.otherwise == pytest.approx(1 - law.get(acceptance.path, 0.0), abs=1e-12)
        paths.add(acceptance.path)
    assert len(paths) > 2


def test_a_branching_draft_that_is_judged_at_random_has_no_known_law(group_values):
    rule = verifiers.build(group_values("verifier", "lenient"))
    draft = Draft(torch.tensor([0, 2]), Tree((-1, -1)))
    decided = Decided(draft, P, Acceptance((0,), 1, rejected=False, tokens=(0, 2)), (0, 1), chain=False)
    assert departure(rule, decided) is None


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("lenient", {"lenience": 0.3}),
        ("lenient", {"form": "greedy"}),
        ("typical", {}),
        ("blockwise", {"acceptance": "top_k", "minimum_block": 2}),
        ("speculative_sampling", {}),
    ],
)
def test_deciding_otherwise_is_what_shared_uniforms_give(group_values, name, changes):
    """Both rules on one draft and one stream of uniforms, again and again: a true figure strays beyond four standard
    errors of the difference in 1 of 16,000 runs."""
    rule, strict = (
        verifiers.build(group_values("verifier", name, **changes)),
        verifiers.build({"name": "speculative_sampling"}),
    )
    generator, differ, said = torch.Generator().manual_seed(0), [], []
    for seed in range(ROUNDS):
        tokens = sample(Q, generator)
        draft = Draft(tokens, chain_tree(2), Q)
        p = P[[0, 1, 2]]
        one, far = decided(rule, draft, p, generator=torch.Generator().manual_seed(seed))
        other = strict.accept(draft, p, torch.Generator().manual_seed(seed))
        differ.append(one.path != other.path)
        said.append(far.otherwise)
    apart = torch.tensor(differ, dtype=torch.float64) - torch.tensor(said)
    assert abs(float(apart.mean())) <= 4 * float(apart.std()) / math.sqrt(ROUNDS)
    assert (sum(said) == 0) == (name == "speculative_sampling")


def test_a_lossless_rule_departs_nowhere_and_one_hot_laws_give_zeros_and_ones(group_values):
    strict = verifiers.build({"name": "speculative_sampling"})
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        _, none = decided(strict, Draft(sample(Q, generator), chain_tree(2), Q), P, generator=generator)
        assert none.otherwise == 0 and max(none.tv) == pytest.approx(0, abs=1e-12)
    forced = verifiers.build(group_values("verifier", "blockwise", minimum_block=2))
    one_hot = torch.eye(4, dtype=torch.float64)[[0, 1, 2]]
    for tokens, otherwise in (([0, 1], 0.0), ([3, 1], 1.0), ([0, 3], 0.0)):
        _, far = decided(forced, Draft(torch.tensor(tokens), chain_tree(2)), one_hot)
        assert far.otherwise == otherwise and set(far.tv) <= {0.0, 1.0} and sum(far.tv) == (tokens[0] == 3)


def test_the_loop_records_a_departure_for_every_committed_token(table, random_law, group_values, make_structure):
    law, rule = random_law(4, 0), verifiers.build(group_values("verifier", "typical"))
    drafter = SlowDrafter(lambda text, structure: [(2, node - 1) for node in range(structure.gamma)])
    asked = (table(law, temperature=1.0), drafter, make_structure("chain", 3), [0], 30)
    output = decode(*asked, rule, **seeded())
    text, place = [0, *output.tokens], 0
    for each in output.rounds:
        assert each.departure is not None and len(each.departure.tv) == len(each.committed)
        for tv in each.departure.tv:
            assert tv == pytest.approx(1 - float(law[text[place], text[place + 1]]))
            place += 1
    assert all(each.departure is None for each in decode(*asked, "speculative_sampling", **seeded()).rounds)
