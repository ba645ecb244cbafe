"""Rules that are not lossless, where p is one-hot: each is exact match."""

import pytest
import torch

from specdec.records import Draft, chain_tree
from specdec.sampling import one_hot
from specdec.verifiers import verifiers

CASES = [("lenient", {"lenience": 0.1, "form": form}) for form in ("sampled", "greedy")]
CASES += [("blockwise", {"acceptance": "top_k", "top_k": k}) for k in (2, 9)]
CASES += [("blockwise", {"acceptance": "exact"}), ("blockwise", {"acceptance": "score", "threshold": 0.15})]
CASES += [
    ("typical", {"epsilon": epsilon, "delta": delta}) for epsilon, delta in ((0.09, 0.3), (0.3, None), (0.02, 2.0))
]


@pytest.mark.parametrize(("name", "changes"), CASES, ids=str)
def test_where_p_is_one_hot_every_rule_is_exact_match(random_draft, group_values, name, changes):
    rule, greedy = verifiers.build(group_values("verifier", name, **changes)), verifiers.build({"name": "greedy"})
    assert rule.for_greedy().capabilities.lossless
    generator, accepted = torch.Generator().manual_seed(0), set()
    for seed in range(25):
        p = one_hot(torch.randint(3, (9,), generator=generator), 3)
        draft = random_draft(8, 3, seed)
        if "tree" not in rule.capabilities.handles:
            draft = Draft(draft.tokens, chain_tree(8))
        # Siblings that carry one token do not come from `structures`, which merge them.
        siblings = list(zip(draft.tree.parents, draft.tokens.tolist(), strict=True))
        if len(set(siblings)) == len(siblings):
            assert rule.accept(draft, p, generator) == greedy.accept(draft, p, None)
            accepted.add(len(greedy.accept(draft, p, None).path))
    assert len(accepted) > 1
