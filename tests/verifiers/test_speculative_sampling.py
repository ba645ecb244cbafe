"""The walk down a branching draft: the same decision without a look on the way, and what it reports."""

import pytest
import torch
from fixtures.drafting import tree
from torch.utils._python_dispatch import TorchDispatchMode

from specdec.certification.exact import fill
from specdec.records import Draft, Tree
from specdec.sampling import one_hot
from specdec.verifiers import speculative_sampling
from specdec.verifiers.base import verifiers

PARENTS = [-1, -1, -1, 0, 0, 1, 3, 3, 6]


def draft_and_p(law, way, seed):
    """A draft of a tree with leaves at every depth, and p after each of its nodes."""
    generator = torch.Generator().manual_seed(seed)
    draft = fill(tree(*PARENTS), law, 0, generator, way)
    return draft, law.roll(1, 0)[torch.cat([torch.tensor([0]), draft.tokens])]


RULES = [(name, way) for name in ("speculative_sampling", "k_seq") for way in ("independent", "ranked")]
RULES.append(("speculative_sampling", "without_replacement"))


@pytest.mark.parametrize(("name", "way"), RULES)
def test_the_decision_does_not_depend_on_looking(random_law, monkeypatch, name, way):
    """A GPU masks out what a CPU leaves out."""
    rule, law = verifiers.build({"name": name}), random_law(6, 2)
    depths = set()
    for seed in range(20):
        draft, p = draft_and_p(law, way, seed)
        looking = rule.accept(draft, p, torch.Generator().manual_seed(seed))
        with monkeypatch.context() as patch:
            patch.setattr(speculative_sampling, "can_look", lambda values: False)
            assert rule.accept(draft, p, torch.Generator().manual_seed(seed)) == looking
        last = looking.path[-1] if looking.path else -1
        assert looking.rejected == bool(draft.tree.children[last + 1])
        assert draft.tree.path(last) == looking.path
        depths.add(len(looking.path))
    assert len(depths) > 2


@pytest.mark.parametrize(("name", "way"), RULES)
def test_nothing_is_fetched_on_the_way(random_law, monkeypatch, name, way):
    """What would make the host wait for a GPU: numbers, truth values, and shapes that depend on values."""

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            assert not {"_local_scalar_dense", "is_nonzero", "nonzero", "equal"} & {function.overloadpacket.__name__}
            return function(*args, **(kwargs or {}))

    draft, p = draft_and_p(random_law(6, 2), way, 0)
    monkeypatch.setattr(speculative_sampling, "can_look", lambda values: False)
    with Watch():
        verifiers.build({"name": name}).accept(draft, p, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["speculative_sampling", "k_seq"])
def test_point_masses_that_repeat_a_token_are_one_chance(enumeration, name):
    """The second of two equal siblings is never taken, and no chance is counted twice."""
    rule = verifiers.build({"name": name})
    draft = Draft(torch.tensor([1, 1, 2]), Tree((-1, -1, -1)))
    p = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64).expand(4, -1)

    def run():
        decision = rule.accept(draft, p, enumeration.generator)
        return decision.path, decision.path and draft.tokens[decision.path[0]].item() or decision.next_token

    assert enumeration.law(run) == pytest.approx({((), 0): 0.5, ((0,), 1): 0.3, ((2,), 2): 0.2}, abs=1e-12)


def test_a_residual_without_mass_falls_back_to_p():
    """Equal laws to rounding: the draft passes, and were it rejected by rounding, p is what is left."""
    law = torch.tensor([0.25, 0.75])
    draft = Draft(torch.tensor([0, 1]), Tree((-1, -1)), torch.stack([law, one_hot(torch.tensor(1), 2)]))
    for seed in range(20):
        decision = verifiers.build({"name": "speculative_sampling"}).accept(
            draft, law.expand(3, -1), torch.Generator().manual_seed(seed)
        )
        assert decision.path == (0,) and decision.next_token in (0, 1) and not decision.rejected
