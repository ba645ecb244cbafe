"""What every registered drafter promises: valid tokens, the q that they were drawn from, no hidden randomness, no stale
state. The checks are those that packages of others run on their own drafters (`specdec.testing`).
"""

from pathlib import Path
from typing import Any, get_args

import pytest

from specdec.drafters.base import drafters
from specdec.drafters.base.contract import Replay
from specdec.records import TextStart
from specdec.sampling import generator_for
from specdec.structures.base import structures
from specdec.testing import drafter_contract
from specdec.testing.drafter_contract import PROMPT, SIZE, Subject

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
def test_drafts_are_well_formed(subject, name, structure):
    drafter_contract.drafts_are_well_formed(subject(name, structure))


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_draws_are_of_the_children(subject, name, structure):
    drafter_contract.draws_are_of_the_children(subject(name, structure))


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_q_is_a_law_that_can_have_given_the_token(subject, name, structure):
    drafter_contract.q_can_have_given_the_token(subject(name, structure))


@pytest.mark.parametrize("name", [name for name, structure in CASES if structure == "chain"])
def test_q_is_the_law_of_the_draws(subject, name):
    drafter_contract.q_is_the_law_of_the_draws(subject(name, "chain"))


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_the_same_generator_gives_the_same_drafts(subject, name, structure):
    drafter_contract.the_same_generator_gives_the_same_drafts(subject(name, structure))


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_without_q_the_draft_is_a_function_of_its_state(subject, name, structure):
    drafter_contract.without_q_the_draft_follows_from_its_state(subject(name, structure))


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_global_randomness_is_neither_read_nor_moved(subject, name, structure):
    drafter_contract.global_randomness_is_left_alone(subject(name, structure))


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_nothing_is_drafted_where_nothing_fits(subject, name, structure):
    drafter_contract.nothing_is_drafted_where_nothing_fits(subject(name, structure))


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_a_new_text_starts_from_nothing(subject, name, structure):
    drafter_contract.a_new_text_starts_from_nothing(subject(name, structure))


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_a_round_may_be_drafted_by_another(subject, name, structure):
    drafter_contract.a_round_may_be_drafted_by_another(subject(name, structure))


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_a_rejection_leaves_nothing_stale(subject, name, structure):
    drafter_contract.a_rejection_leaves_nothing_stale(subject(name, structure))


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_tokens_taken_back_leave_no_trace(subject, name, structure):
    drafter_contract.tokens_taken_back_leave_no_trace(subject(name, structure))


def test_no_check_is_left_out():
    source = Path(__file__).read_text(encoding="utf-8")
    checks = (*drafter_contract.CHECKS, *drafter_contract.CHAIN_CHECKS)
    assert all(f"drafter_contract.{check.__name__}(" in source for check in checks)


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


def replayed(replay: str) -> list[str]:
    return [
        name
        for name in drafters.names()
        if drafters.get(name).capabilities.replay == replay and (name, "chain") in CASES
    ]


@pytest.mark.parametrize("name", replayed("position"))
def test_a_positional_replay_needs_proposals_that_depend_on_the_text_only(subject, name):
    drafter_contract.a_replay_by_position_is_right(subject(name, "chain"))


@pytest.mark.parametrize("name", replayed("start"))
def test_a_replay_from_starts_needs_proposals_that_forget_earlier_rounds(subject, name):
    drafter_contract.a_replay_from_starts_is_right(subject(name, "chain"))
