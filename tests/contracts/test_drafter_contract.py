"""What every registered drafter promises: valid tokens, the q that they were drawn from, no hidden randomness, no stale
state. The checks are those that packages of others run on their own drafters (`specdec.testing`). All are made on
chains; on structures that branch, those that depend on the tree, in pairs.
"""

from collections import defaultdict
from functools import cache
from typing import Any, get_args
from unittest import SkipTest

import pytest
from fixtures.refusals import refused
from fixtures.two_tiers import pairwise

from specdec.certification import drafter_contract as contract
from specdec.drafters.base import drafters
from specdec.drafters.base.contract import Replay
from specdec.records import TextStart
from specdec.sampling import generator_for
from specdec.structures.base import structures

pytestmark = pytest.mark.usefixtures("models_opened_once")
FILLS = {name: drafters.get(name).capabilities.fills for name in drafters.names()}
ON_TREES = (
    contract.drafts_are_well_formed,
    contract.draws_are_of_the_children,
    contract.q_can_have_given_the_token,
    contract.a_round_may_be_drafted_by_another,
    contract.a_rejection_leaves_nothing_stale,
    contract.tokens_taken_back_leave_no_trace,
)
BRANCHING = [
    (name, structure, check)
    for name, fills in FILLS.items()
    for structure in sorted(fills - {"chain"})
    for check in (ON_TREES if "chain" in fills else contract.CHECKS)
]
CASES: dict[tuple[str, str], list[Any]] = defaultdict(list)  # the checks of a drafter in a structure
for name, fills in FILLS.items():
    CASES[name, "chain"] += [*contract.CHECKS, *contract.CHAIN_CHECKS] if "chain" in fills else []
for *pair, check in sorted(pairwise(BRANCHING), key=BRANCHING.index):
    CASES[tuple(pair)].append(check)


@pytest.fixture(scope="module")
def build(drafter_values, small_target):
    @cache
    def parts(name: str) -> Any:
        target = small_target(name, contract.SIZE, temperature=1.0)
        return drafters.config(drafter_values(name, contract.SIZE, target)), target

    return lambda name: drafters.construct(parts(name)[0], target=parts(name)[1])


@pytest.mark.parametrize(("name", "structure"), [case for case, checks in CASES.items() if checks])
def test_the_contract_holds(build, make_structure, name, structure):
    """A sentence and the check's name say what does not hold."""
    subject, skipped = contract.Subject(lambda: build(name), lambda gamma: make_structure(structure, gamma)), []
    for check in CASES[name, structure]:
        try:
            check(subject)
        except SkipTest:
            skipped.append(check)
    assert len(skipped) <= 4, "a check that skips itself says nothing, and too many of them do"


# Values that the bounds of a drafter's keys leave out.
OUT_OF_BOUNDS = {
    "corpus_ngram": {"order": (0,), "discount": (0.0, 1.0), "corpus": ("",)},
    "early_exit": {"exit_layer": (0,)},
    "jacobi": {"guess": ("zero",)},
    "layer_skip": {"skip": ([],)},
    "lookahead": {"window": (1,), "ngram": (1,), "candidates": (0,)},
    "ngram": {"q": (0, 9, "short", None), "order_max": (0, 17), "order_min": ("x",), "matches_max": (0,)},
    "oracle": {"alpha": (-0.1, 1.1, float("nan"), "high", None)},
    "recycling": {"k": (0,)},
    "retrieval": {"hits_max": (0,)},
    "small_model": {
        **{"drafts": ("beam",), "siblings": ("with_replacement",), "translate": ("yes",)},
        **{"dtype": ("int8",), "prefill_chunk": (0,)},
    },
    "spec_tree": {"models": ([],), "children": ("all",)},
    "suffix": {"match_min": (0,), "factor": (-1.0,), "matches_max": (0,), "earlier_outputs": (-1,)},
}


@pytest.mark.parametrize("name", OUT_OF_BOUNDS)
def test_a_value_out_of_bounds_is_refused_by_its_key(group_values, name):
    for key, values in OUT_OF_BOUNDS[name].items():
        for value in values:
            with refused(rf"drafter\.{key}"):
                drafters.config(group_values("drafter", name, **{key: value}))


@pytest.mark.parametrize("name", drafters.names())
def test_costs_and_declarations(build, name):
    drafter = build(name)
    assert FILLS[name] & set(structures.names())
    assert drafter.flops_per_token >= 0
    assert drafter.capabilities.replay in (*get_args(Replay), None)
    if drafter.capabilities.reads_logits:
        assert drafter.capabilities.replay in ("calling", None), "its rounds do not follow from the text alone"
    if drafter.capabilities.needs_reference:
        with pytest.raises(ValueError, match="reference"):
            drafter.start(TextStart(contract.PROMPT, 1000, generator=generator_for(0, "prompt", "draft")))
