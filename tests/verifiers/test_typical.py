"""Typical acceptance against its definition in numpy, its exact law, and a search over every path of a tree."""

import math

import numpy as np
import pytest
import torch
from oracles.acceptance import typical_threshold

from specdec.errors import UsageError
from specdec.records import Draft, Tree, chain_tree
from specdec.sampling import one_hot
from specdec.verifiers import verifiers

SETTINGS = [(0.09, 0.3), (0.3, None), (0.02, 2.0)]


def typical(epsilon=0.09, delta=0.3):
    return verifiers.build({"name": "typical", "epsilon": epsilon, "delta": delta})


def passing(p, epsilon, delta):
    """Which tokens [..., V] pass, by theory's own formula."""
    bound = typical_threshold(p, epsilon, math.sqrt(epsilon) if delta is None else delta)
    return np.asarray(p) > np.asarray(bound)[..., None]


def test_the_threshold_of_the_worked_example():
    """theory.md 1.2: H = 1.279854, threshold 0.083423, so 0.1 passes; at epsilon 0.09 a delta of 0.37 stops it."""
    p = torch.tensor([[0.4, 0.3, 0.2, 0.1]] * 2, dtype=torch.float64)
    assert typical()._threshold(p)[0].item() == pytest.approx(0.083423, abs=1e-6)
    last = Draft(torch.tensor([3]), chain_tree(1))
    assert typical().accept(last, p, None).path == (0,)
    assert typical(0.5, 0.37).accept(last, p, None).path == ()  # 0.37 exp(-H) = 0.1029
    assert typical(0.09, 0.37).accept(last, p, None).path == (0,)  # epsilon is the smaller again


def test_a_chance_of_just_the_threshold_is_not_enough():
    """2.3.1 of the paper has a strict inequality. Four tokens of chance 1/4 with epsilon 1/4, which is exact in binary;
    2 exp(-H) = 1/2 is above it."""
    p, q = torch.full((2, 4), 0.25), torch.full((4,), 0.25)
    draft = Draft(torch.tensor([2]), chain_tree(1))
    assert typical(0.25, 2.0).accept(draft, p, None).path == ()
    assert typical(0.249, 2.0).accept(draft, p, None).path == (0,)
    assert typical(0.25, 2.0).law(p[0], q).tolist() == [1.0, 0.0, 0.0, 0.0]
    assert typical(0.249, 2.0).law(p[0], q).tolist() == [0.25, 0.25, 0.25, 0.25]


@pytest.mark.parametrize(("epsilon", "delta"), SETTINGS)
def test_the_first_token_has_the_law_that_the_rule_states(first_token, random_law, epsilon, delta):
    rule = typical(epsilon, delta)
    for p, q in zip(random_law(5, 1), random_law(5, 2), strict=True):
        passed = torch.tensor(passing(p.numpy(), epsilon, delta))
        for drafted in (q, *one_hot(torch.arange(5), 5).double()):
            law, accepted = first_token(rule, p, drafted)
            assert (law - rule.law(p, drafted)).abs().max() < 1e-12
            assert accepted == pytest.approx(float(drafted[passed].sum()), abs=1e-12)


def test_the_longest_accepted_path_of_a_tree_wins(random_draft, random_law):
    lengths = set()
    for seed in range(25):
        p = random_law(6, seed)[torch.randint(6, (13,), generator=torch.Generator().manual_seed(seed))]
        draft = random_draft(12, 6, seed)
        passes = passing(p.numpy(), 0.3, None)
        accepted = [
            path
            for path in (draft.tree.path(node) for node in range(12))
            if all(passes[draft.tree.parents[node] + 1, draft.tokens[node]] for node in path)
        ]
        best = max(accepted, key=len, default=())  # the first of equally long ones
        decision = typical(0.3, None).accept(draft, p, None)
        assert decision.path == best
        last = best[-1] if best else -1
        assert decision.next_token == int(p[last + 1].argmax())
        assert decision.rejected == (last in draft.tree.parents)
        assert decision.tokens == tuple(draft.tokens.tolist())
        lengths.add(len(best))
    assert len(lengths) > 2


def test_of_equally_long_paths_the_first_wins():
    p = torch.full((5, 4), 0.25, dtype=torch.float64)  # threshold 0.075
    draft = Draft(torch.tensor([3, 1, 2, 0]), Tree((-1, -1, 1, 0)))
    assert typical().accept(draft, p, None).path == (1, 2)


def test_thresholds_that_make_no_sense_are_refused():
    for key, value in (("epsilon", 0.0), ("epsilon", 1.0), ("delta", 0.0)):
        with pytest.raises(UsageError, match=f"verifier.{key}"):
            typical(**{key: value})
