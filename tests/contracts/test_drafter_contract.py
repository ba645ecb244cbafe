"""What every registered drafter promises: valid tokens, the q that they were drawn from, no hidden randomness, no stale
state. The checks are those that packages of others run on their own drafters (`specdec.testing`). The first tier of the
suite makes every check on chains, and every check of every drafter on one of the structures that branch; the second
makes all on all.
"""

from collections import defaultdict
from functools import cache
from typing import Any, get_args
from unittest import SkipTest

import pytest
from fixtures.refusals import refused
from fixtures.two_tiers import pairwise

from specdec.drafters import parallel, small_model
from specdec.drafters.base import drafters
from specdec.drafters.base.contract import Replay
from specdec.models.load import load_model
from specdec.ngrams import source_model
from specdec.records import TextStart
from specdec.sampling import generator_for
from specdec.structures.base import structures
from specdec.testing.drafter_contract import CHAIN_CHECKS, CHECKS, PROMPT, SIZE, Subject

CASES = [
    (name, structure)
    for name in drafters.names()
    for structure in structures.names()
    if structure in drafters.get(name).capabilities.fills
]
BRANCHING = [(*case, check) for case in CASES if case[1] != "chain" for check in CHECKS]
FIRST: dict[tuple[str, str], list[Any]] = defaultdict(list)  # the checks of a pair in the first tier
for *branching, check in sorted(pairwise(BRANCHING), key=BRANCHING.index):
    FIRST[tuple(branching)].append(check)
FIRST |= {case: [*CHECKS, *CHAIN_CHECKS] for case in CASES if case[1] == "chain"}


@pytest.fixture(scope="module", autouse=True)
def loaded_once():
    """A pair builds its drafter dozens of times: the weights of a model are read from its files once."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (parallel, small_model, source_model):
            patch.setattr(module, "load_model", cache(load_model))
        yield


@pytest.fixture(scope="module")
def build(drafter_values, small_target):
    target_of = cache(lambda name: small_target(name, SIZE, temperature=1.0))

    def make(name: str) -> Any:
        target = target_of(name)
        return drafters.build(drafter_values(name, SIZE, target), target=target)

    return make


@pytest.fixture
def subject(build, make_structure):
    return lambda name, structure: Subject(lambda: build(name), lambda gamma: make_structure(structure, gamma))


def test_every_drafter_fills_something_registered():
    for name in drafters.names():
        assert drafters.get(name).capabilities.fills & set(structures.names()), name


def hold(pair, checks):
    """Make checks on one subject; a sentence and the check's name say what does not hold."""
    skipped = []
    for check in checks:
        try:
            check(pair)
        except SkipTest:
            skipped.append(check)
    assert len(skipped) <= 4, "a check that skips itself says nothing, and too many of them do"


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_the_contract_holds(subject, name, structure):
    hold(subject(name, structure), FIRST[name, structure])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "structure"), [case for case in CASES if case[1] != "chain"])
def test_the_whole_contract_holds_where_drafts_branch(subject, name, structure):
    hold(subject(name, structure), CHECKS)


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
    assert drafter.flops_per_token >= 0
    assert drafter.capabilities.replay in (*get_args(Replay), None)
    if drafter.capabilities.reads_logits:
        assert drafter.capabilities.replay in ("calling", None), "its rounds do not follow from the text alone"
    if drafter.capabilities.needs_reference:
        with pytest.raises(ValueError, match="reference"):
            drafter.start(TextStart(PROMPT, 1000, generator=generator_for(0, "prompt", "draft"), reference=None))
