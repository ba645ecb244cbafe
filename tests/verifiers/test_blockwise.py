"""Blockwise acceptance against its definition token by token, and the laws that it states."""

import pytest
import torch

from specdec.errors import UsageError
from specdec.records import Draft, chain_tree
from specdec.sampling import one_hot
from specdec.verifiers import verifiers

KINDS = [("exact", {}), ("top_k", {"top_k": 2}), ("top_k", {"top_k": 9}), ("score", {"threshold": 0.15})]


def blockwise(group_values, acceptance="exact", **changes):
    return verifiers.build(group_values("verifier", "blockwise", acceptance=acceptance, **changes))


def passes(p, token, acceptance, top_k=1, threshold=0.0):
    """One token's test, written out: p a list of chances."""
    if acceptance == "score":
        return p[token] >= max(p) - threshold
    ranking = sorted(range(len(p)), key=lambda other: -p[other])  # stable: the first of equals leads
    return p[token] > 0 and ranking.index(token) < top_k


@pytest.mark.parametrize(
    ("acceptance", "changes", "minimum"),
    [(*KINDS[0], 1), (*KINDS[0], 9), (*KINDS[1], 2), (*KINDS[2], 3), (*KINDS[3], 1)],
)
def test_a_block_ends_at_the_first_token_that_fails(group_values, random_law, acceptance, changes, minimum):
    rule = blockwise(group_values, acceptance, minimum_block=minimum, **changes)
    generator, lengths = torch.Generator().manual_seed(0), set()
    for seed in range(30):
        p = random_law(5, seed)
        tokens = torch.randint(5, (4,), generator=generator)
        expected = 0
        while expected < 4 and (
            expected + 1 < minimum or passes(p[expected].tolist(), int(tokens[expected]), acceptance, **changes)
        ):
            expected += 1
        decision = rule.accept(Draft(tokens, chain_tree(4)), p, None)
        assert decision.path == tuple(range(expected)) and decision.rejected == (expected < 4)
        assert decision.next_token == int(p[expected].argmax())
        lengths.add(expected)
    assert min(lengths) == min(minimum - 1, 4) or changes.get("top_k") == 9
    assert len(lengths) > 1 or minimum == 9 or changes.get("top_k") == 9


@pytest.mark.parametrize(("acceptance", "changes"), KINDS)
def test_the_stated_law_is_that_of_tokens_that_pass(random_law, group_values, acceptance, changes):
    """A draft token that fails is replaced by the best token of p; below the minimum nothing fails."""
    minimum = 2
    rule = blockwise(group_values, acceptance, minimum_block=minimum, **changes)
    for p, q in zip(random_law(3, 7), random_law(3, 8), strict=True):
        for depth in (1, 2, 3):
            kept = [depth < minimum or passes(p.tolist(), token, acceptance, **changes) for token in range(3)]
            law = q * torch.tensor(kept)
            law[p.argmax()] += 1 - law.sum()
            torch.testing.assert_close(rule.law(p, q, depth), law)


def test_only_exact_match_claims_to_be_lossless(group_values):
    exact = blockwise(group_values)
    assert exact.capabilities.lossless and exact.capabilities.greedy_only
    for rule in (
        blockwise(group_values, minimum_block=2),
        blockwise(group_values, "top_k", top_k=1),
        blockwise(group_values, "score"),
    ):
        assert not rule.capabilities.lossless and not rule.capabilities.greedy_only
    # A minimum block departs from greedy text even where p is one-hot.
    assert not blockwise(group_values, minimum_block=2).for_greedy().capabilities.lossless
    p = one_hot(torch.tensor([0, 0, 0]), 2)
    forced = (
        blockwise(group_values, minimum_block=2)
        .for_greedy()
        .accept(Draft(torch.tensor([1, 1]), chain_tree(2)), p, None)
    )
    assert forced.path == (0,) and forced.next_token == 0 and forced.rejected


def test_values_out_of_bounds_are_refused(group_values):
    for key, value in {"top_k": 0, "threshold": 1.0, "minimum_block": 0, "acceptance": "close"}.items():
        with pytest.raises(UsageError, match=f"verifier.{key}"):
            verifiers.build(group_values("verifier", "blockwise", **{key: value}))
