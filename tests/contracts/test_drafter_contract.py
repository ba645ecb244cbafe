"""What every registered drafter promises: valid tokens, the q that they were drawn from, no hidden randomness, no stale
state. The checks are those that packages of others run on their own drafters (`specdec.testing`).
"""

from typing import Any, get_args
from unittest import SkipTest

import pytest

from specdec.drafters.base import drafters
from specdec.drafters.base.contract import Replay
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


@pytest.fixture
def build(drafter_values, small_target):
    def make(name: str) -> Any:
        target = small_target(name, SIZE, temperature=1.0)
        return drafters.build(drafter_values(name, SIZE, target), target=target)

    return make


@pytest.fixture
def subject(build, make_structure):
    return lambda name, structure: Subject(lambda: build(name), lambda gamma: make_structure(structure, gamma))


def test_every_drafter_fills_something_registered():
    for name in drafters.names():
        assert drafters.get(name).capabilities.fills & set(structures.names()), name


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_the_contract_holds(subject, name, structure):
    """Every check on one subject; a sentence and the check's name say what does not hold."""
    pair, checks = subject(name, structure), (*CHECKS, *(CHAIN_CHECKS if structure == "chain" else ()))
    skipped = []
    for check in checks:
        try:
            check(pair)
        except SkipTest:
            skipped.append(check)
    assert len(skipped) <= 4, "a check that skips itself says nothing, and too many of them do"


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
