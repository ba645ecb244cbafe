"""What every registered drafter promises: valid tokens, the q that they were drawn from, and no hidden
randomness.
"""

from collections.abc import Sequence
from typing import Any, get_args

import pytest
import torch

from specdec.drafters.base import drafters
from specdec.drafters.base.contract import Replay
from specdec.records import Draft, TextStart
from specdec.sampling import generator_for, one_hot
from specdec.structures.base import structures

PROMPT = [0, 3, 1, 4, 0, 3, 1, 2, 0, 3]
REFERENCE = [1, 4, 0, 3, 1, 2, 2, 4, 0, 0, 1, 3]
SIZE = 5
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


def begin(drafter: Any, prompt: Sequence[int] = PROMPT, reference: Sequence[int] = REFERENCE, seed: int = 0) -> None:
    wanted = reference if drafter.capabilities.needs_reference else None
    text = TextStart(prompt, 1000, generator=generator_for(seed, "prompt", "draft"), reference=wanted)
    drafter.start(text, states(prompt[:-1]))


def states(tokens: Sequence[int]) -> torch.Tensor:
    """The states of a table target are its tokens, one-hot."""
    return one_hot(torch.tensor(tokens, dtype=torch.long), SIZE).double()


def observe(drafter: Any, draft: Draft, root: int) -> None:
    """Let a drafter that learns from the target's logits do so: these are those of a table of its own."""
    if drafter.capabilities.reads_logits:
        table = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        drafter.observe(draft, table[torch.cat([torch.tensor([root]), draft.tokens])])


def walk(drafter: Any, structure: Any, seed: int = 0) -> list[Draft]:
    """Drafts along a text in which a round commits 1, 2, 3, 1, ... recorded tokens, down to the last one."""
    begin(drafter, seed=seed)
    drafts, position = [], 0
    while position < len(REFERENCE):
        drafts.append(drafter.draft(structure.clamped(len(REFERENCE) - position - 1)))
        observe(drafter, drafts[-1], [*PROMPT[-1:], *REFERENCE][position])
        step = 1 + len(drafts) % 3
        drafter.commit(
            REFERENCE[position : position + step], states([*PROMPT[-1:], *REFERENCE][position : position + step])
        )
        position += step
    return drafts


def test_every_drafter_fills_something_registered():
    for name in drafters.names():
        assert drafters.get(name).capabilities.fills & set(structures.names()), name


@pytest.mark.parametrize("gamma", [1, 2, 5])
@pytest.mark.parametrize(("name", "structure"), CASES)
def test_drafts_are_well_formed(build, make_structure, name, structure, gamma):
    shape = make_structure(structure, gamma)
    for draft in walk(build(name), shape):
        assert draft.tokens.dtype == torch.int64 and draft.tokens.shape == (len(draft),)
        assert ((draft.tokens >= 0) & (draft.tokens < SIZE)).all()
        assert len(draft) <= shape.nodes and draft.tree.depth <= shape.gamma
        assert len(draft.tree.leaves) <= shape.branches
        for children in draft.tree.children:
            assert len({int(draft.tokens[child]) for child in children}) == len(children), "siblings are told apart"
        assert len(draft.source) == len(draft), "one source entry for every node"
        assert all(entry.strategy and entry.rank >= 0 for entry in draft.source)
        if structure == "chain":
            assert draft.tree.is_chain


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_draws_are_of_the_children(build, make_structure, name, structure):
    """Every child was drawn, some of them again; a point mass only once."""
    for draft in walk(build(name), make_structure(structure, 3)):
        assert [set(drawn) for drawn in draft.tests] == [set(children) for children in draft.tree.children]
        if draft.q is None:
            assert draft.tests == draft.tree.children


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_q_is_a_law_that_can_have_given_the_token(build, make_structure, name, structure):
    for draft in walk(build(name), make_structure(structure, 4)):
        if draft.q is None or len(draft) == 0:
            continue
        assert draft.q.shape == (len(draft), SIZE)
        assert (draft.q >= 0).all()
        assert (draft.q.double().sum(-1) - 1).abs().max() < 1e-5
        assert (draft.q.gather(-1, draft.tokens.unsqueeze(-1)) > 0).all()


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_the_same_generator_gives_the_same_drafts(build, make_structure, name, structure):
    drafter = build(name)
    first, again = walk(drafter, make_structure(structure, 4)), walk(drafter, make_structure(structure, 4))
    fresh = walk(build(name), make_structure(structure, 4))
    for one, *others in zip(first, again, fresh, strict=True):
        assert all(torch.equal(one.tokens, other.tokens) and one.tree == other.tree for other in others)


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_without_q_the_draft_is_a_function_of_its_state(build, make_structure, name, structure):
    """A point mass is only true if nothing random happens between `start` and the draft: asked twice, told
    twice.
    """
    drafter = build(name)
    begin(drafter)
    shape = make_structure(structure, 3)
    for step in range(4):
        one, two = drafter.draft(shape), drafter.draft(shape)
        if one.q is None:
            assert torch.equal(one.tokens, two.tokens) and one.tree == two.tree
        observe(drafter, two, [*PROMPT[-1:], *REFERENCE][step])
        drafter.commit(REFERENCE[step : step + 1])


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_global_randomness_is_neither_read_nor_moved(build, make_structure, name, structure):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = walk(build(name), make_structure(structure, 4))
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    for one, other in zip(first, walk(build(name), make_structure(structure, 4)), strict=True):
        assert torch.equal(one.tokens, other.tokens)


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_nothing_is_drafted_where_nothing_fits(build, make_structure, name, structure):
    drafter = build(name)
    begin(drafter)
    empty = drafter.draft(make_structure(structure, 4).clamped(0))
    assert len(empty) == 0 and empty.tokens.shape == (0,) and empty.source == ()


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_a_new_text_starts_from_nothing(build, make_structure, name, structure):
    used, shape = build(name), make_structure(structure, 4)
    begin(used, [4, 4, 4, 2, 2, 4, 4], [2, 4, 4], seed=9)
    observe(used, used.draft(shape), 2)
    used.commit([2, 4])
    for one, other in zip(walk(used, shape), walk(build(name), shape), strict=True):
        assert torch.equal(one.tokens, other.tokens)


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_a_round_may_be_drafted_by_another(build, make_structure, name, structure):
    """Between two drafts of its own a drafter may be told of rounds that it did not draft."""
    drafter, shape, text = build(name), make_structure(structure, 3), [*PROMPT[-1:], *REFERENCE]
    begin(drafter)
    drafter.draft(shape)
    drafter.commit(REFERENCE[:2], states(text[:2]))
    drafter.commit(REFERENCE[2:5], states(text[2:5]))
    drafter.commit(REFERENCE[5:6], states(text[5:6]))
    draft, fresh = drafter.draft(shape), build(name)
    begin(fresh, [*PROMPT, *REFERENCE[:6]], REFERENCE[6:])
    assert_same(drafter, draft, fresh.draft(shape))


@pytest.mark.parametrize(("name", "structure"), CASES)
def test_tokens_taken_back_leave_no_trace(build, make_structure, name, structure):
    """Where a drafter can: its draft is that of the shorter text, and of the text that replaces the tokens."""
    drafter, shape, text = build(name), make_structure(structure, 3), [*PROMPT[-1:], *REFERENCE]
    begin(drafter)
    if not retracts(drafter, shape):
        pytest.skip(f"{name} is started anew")
    begin(drafter)
    for kept, wrong in ((2, [4, 4]), (3, [0, 3, 1]), (6, [2])):
        drafter.draft(shape)
        drafter.commit([*REFERENCE[:kept], *wrong][-len(wrong) - 1 :])
        drafter.draft(shape)
        assert drafter.retract(len(wrong) + 1)
        fresh = build(name)
        begin(fresh)
        assert_same(drafter, drafter.draft(shape), fresh.draft(shape))
        drafter.commit(REFERENCE[:kept], states(text[:kept]))
        begin(fresh, [*PROMPT, *REFERENCE[:kept]])
        assert_same(drafter, drafter.draft(shape), fresh.draft(shape))
        assert drafter.retract(kept)
        # And where several other tokens follow at once, with no draft in between.
        drafter.commit(wrong * 3)
        drafter.draft(shape)
        assert drafter.retract(3 * len(wrong))
        drafter.commit(REFERENCE[:kept], states(text[:kept]))
        assert_same(drafter, drafter.draft(shape), fresh.draft(shape))
        assert drafter.retract(kept)


def retracts(drafter: Any, structure: Any) -> bool:
    drafter.draft(structure)
    drafter.commit(REFERENCE[:2])
    return drafter.retract(2)


def assert_same(drafter: Any, one: Draft, other: Draft) -> None:
    """Check two drafts after one text, of a drafter whose proposals depend on the text alone: they are one, or their
    first tokens were drawn from one law.
    """
    if drafter.capabilities.replay not in ("position", "start") or drafter.capabilities.needs_reference:
        return
    if one.q is None:
        assert torch.equal(one.tokens, other.tokens) and one.tree == other.tree
    else:
        torch.testing.assert_close(one.q[0], other.q[0])


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


@pytest.mark.parametrize(
    "name", [name for name in drafters.names() if drafters.get(name).capabilities.replay == "position"]
)
def test_a_positional_replay_needs_proposals_that_depend_on_the_text_only(build, make_structure, name):
    """theory.md 4.2: at a position the same token, or the same law, is proposed whatever gamma is and wherever the
    round began.
    """
    if "chain" not in drafters.get(name).capabilities.fills:
        pytest.skip("chains only")
    drafter = build(name)
    seen: dict[int, torch.Tensor] = {}
    for gamma in (1, 2, 3, 5):
        begin(drafter)
        for position in range(len(REFERENCE)):
            draft = drafter.draft(make_structure("chain", gamma).clamped(len(REFERENCE) - position))
            for offset, law in enumerate(draft.tokens if draft.q is None else draft.q):
                if draft.tokens[:offset].tolist() == REFERENCE[position : position + offset]:
                    torch.testing.assert_close(seen.setdefault(position + offset, law), law)
            drafter.commit(REFERENCE[position : position + 1])
    assert len(seen) == len(REFERENCE)


@pytest.mark.parametrize(
    "name", [name for name in drafters.names() if drafters.get(name).capabilities.replay == "start"]
)
def test_a_replay_from_starts_needs_proposals_that_forget_earlier_rounds(build, make_structure, name):
    """At a position the same tokens, or the same laws, are proposed however the rounds before it went; `chances` has
    those of the text.
    """
    drafter, text = build(name), [*PROMPT[-1:], *REFERENCE]
    shape = make_structure("chain", 3)
    given = states([*PROMPT, *REFERENCE[:-1]]) if drafter.capabilities.reads_states else None
    chances = drafter.chances(PROMPT, REFERENCE, given, 3)
    assert chances is None or (chances.shape == (len(REFERENCE), 3) and not chances[-1, 1:].any())
    seen: dict[tuple[int, int], torch.Tensor] = {}
    for step in (1, 2, 5):
        begin(drafter)
        for position in range(0, len(REFERENCE), step):
            draft = drafter.draft(shape)
            for depth, token in enumerate(REFERENCE[position : position + len(draft)]):
                law = draft.tokens[depth] if draft.q is None else draft.q[depth]
                torch.testing.assert_close(seen.setdefault((position, depth), law), law)
                if chances is not None:
                    q = float(law == token) if draft.q is None else float(law[token])
                    assert float(chances[position, depth]) == pytest.approx(q, rel=1e-5)
                if token != int(draft.tokens[depth]):
                    break  # the laws below are those of another path
            drafter.commit(REFERENCE[position : position + step], states(text[position : position + step]))
    assert seen
