"""Promises of every drafter, as checks: valid tokens, the q they were drawn from, no hidden randomness, no stale state.

Each takes a `Subject` and raises AssertionError with one sentence. None draws a conclusion from luck: the texts are
fixed, and what is random comes from generators with a seed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from unittest import SkipTest

import torch
from torch import Tensor

from specdec.certification.enumeration import Enumeration
from specdec.drafters.base import Drafter
from specdec.records import Draft, TextStart
from specdec.sampling import generator_for, one_hot
from specdec.structures.base import Structure

SIZE = 5  # tokens of the vocabulary
PROMPT = (0, 3, 1, 4, 0, 3, 1, 2, 0, 3)  # it repeats itself
TEXT = (1, 4, 0, 3, 1, 2, 2, 4, 0, 0, 1, 3)  # what is committed after it, whatever was drafted
DEPTH = 4  # of most drafts
_SINGLE = 1e-6  # error of a chance that rounding in float32 explains
_BEFORE = (PROMPT[-1], *TEXT)  # in place i the token before TEXT[i]


@dataclass(frozen=True)
class Subject:
    """A drafter under test: `make` gives a new one for tokens below `vocabulary`, `shape` a structure by its depth."""

    make: Callable[[], Drafter]
    shape: Callable[[int], Structure]
    vocabulary: int = SIZE
    _walked: dict[int, list[Draft]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def drafts(self, gamma: int) -> list[Draft]:
        """Return the drafts of a new drafter in a structure of a depth (`walk`), made once for all checks."""
        if gamma not in self._walked:
            self._walked[gamma] = walk(self.make(), self.shape(gamma))
        return self._walked[gamma]


def require(holds: object, sentence: str) -> None:
    """Raise AssertionError with the sentence unless something holds; other than `assert`, Python's -O leaves it in."""
    if not holds:
        raise AssertionError(sentence)


def states(drafter: Drafter, tokens: Sequence[int]) -> Tensor:
    """Return the hidden states [S, D] of a table target, which are its tokens, one-hot; as wide as a drafter asks."""
    return one_hot(torch.tensor(tokens, dtype=torch.long), drafter.capabilities.state_width or SIZE).double()


def begin(drafter: Drafter, prompt: Sequence[int] = PROMPT, reference: Sequence[int] = TEXT, seed: int = 0) -> Drafter:
    """Start a text, with the generator of a seed; return the drafter."""
    wanted = reference if drafter.capabilities.needs_reference else None
    text = TextStart(prompt, 1000, generator=generator_for(seed, "prompt", "draft"), reference=wanted)
    drafter.start(text, states(drafter, prompt[:-1]))
    return drafter


def observe(drafter: Drafter, draft: Draft, root: int) -> None:
    """Let a drafter that learns from the target's logits do so: these are those of a table of its own."""
    if drafter.capabilities.reads_logits:
        table = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        drafter.observe(draft, table[torch.cat([torch.tensor([root]), draft.tokens])])


def commit(drafter: Drafter, first: int, last: int) -> None:
    """Commit the tokens of `TEXT` from place `first` to before `last`, as a round's."""
    drafter.commit(TEXT[first:last], states(drafter, _BEFORE[first:last]))


def walk(drafter: Drafter, structure: Structure) -> list[Draft]:
    """Return the drafts along `TEXT`, in which a round commits 1, 2, 3, 1, ... tokens, down to the last one."""
    begin(drafter)
    drafts: list[Draft] = []
    position = 0
    while position < len(TEXT):
        drafts.append(drafter.draft(structure.clamped(len(TEXT) - position - 1)))
        observe(drafter, drafts[-1], _BEFORE[position])
        step = 1 + len(drafts) % 3
        commit(drafter, position, position + step)
        position += step
    return drafts


def alike(one: Draft, other: Draft) -> bool:
    """Return whether two drafts have the same tokens in the same places."""
    return torch.equal(one.tokens, other.tokens) and one.tree == other.tree


def drafts_are_well_formed(subject: Subject) -> None:
    """Check tokens, sizes, sources, and that siblings differ, for structures of several depths."""
    for gamma in (1, 2, DEPTH):
        shape = subject.shape(gamma)
        for draft in subject.drafts(gamma):
            right = draft.tokens.dtype == torch.int64 and draft.tokens.shape == (len(draft),)
            require(right, "Draft.tokens should be int64, one for each node of Draft.tree.")
            within = ((draft.tokens >= 0) & (draft.tokens < subject.vocabulary)).all()
            require(within, f"A draft has a token outside of the target's vocabulary of {subject.vocabulary}.")
            for asked, got, what in (
                (shape.nodes, len(draft), "nodes"),
                (shape.gamma, draft.tree.depth, "levels"),
                (shape.branches, len(draft.tree.leaves), "branches"),
            ):
                require(got <= asked, f"A draft has {got} {what}, and the structure asks for {asked} at most.")
            for children in draft.tree.children:
                tokens = {int(draft.tokens[child]) for child in children}
                require(len(tokens) == len(children), "Two children of one node have the same token: merge them.")
            require(len(draft.source) == len(draft), "Draft.source should have one entry for every node.")
            told = all(entry.strategy and entry.rank >= 0 for entry in draft.source)
            require(told, "An entry of Draft.source has no strategy, or a negative rank.")
            if shape.single:
                require(draft.tree.is_chain, "A draft branches where a chain is asked for.")


def draws_are_of_the_children(subject: Subject) -> None:
    """Check that every child was drawn, some of them again; a point mass only once."""
    for draft in subject.drafts(DEPTH):
        drawn = [set(each) for each in draft.tests] == [set(each) for each in draft.tree.children]
        require(drawn, "Draft.draws should list the children of each node, every one of them.")
        if draft.q is None:
            require(draft.tests == draft.tree.children, "A draft without q draws nothing: leave Draft.draws out.")


def q_can_have_given_the_token(subject: Subject) -> None:
    """Check that each q is a law, under which its token has a chance."""
    for draft in subject.drafts(DEPTH):
        if draft.q is None or len(draft) == 0:
            continue
        require(draft.q.shape == (len(draft), subject.vocabulary), "Draft.q should be [nodes, vocabulary].")
        law = bool((draft.q >= 0).all()) and float((draft.q.double().sum(-1) - 1).abs().max()) < 1e-5
        require(law, "A row of Draft.q is no law: its chances are negative, or do not add up to 1.")
        chances = draft.q.gather(-1, draft.tokens.unsqueeze(-1))
        require((chances > 0).all(), "A token has no chance under the row of Draft.q that it was drawn from.")


def the_same_generator_gives_the_same_drafts(subject: Subject) -> None:
    """Check a second walk with the same seed, by the same drafter and by a new one."""
    drafter, shape = subject.make(), subject.shape(DEPTH)
    for one, *others in zip(subject.drafts(DEPTH), walk(drafter, shape), walk(drafter, shape), strict=True):
        same = all(alike(one, other) for other in others)
        require(same, "The same text with the same generator got other drafts the second time.")


def without_q_the_draft_follows_from_its_state(subject: Subject) -> None:
    """Check that a draft without q is repeated when asked for again: a point mass leaves nothing to chance."""
    drafter, shape = begin(subject.make()), subject.shape(3)
    for step in range(4):
        one, two = drafter.draft(shape), drafter.draft(shape)
        if one.q is None:
            require(alike(one, two), "A draft without q changed when it was asked for again: tell the q of its draws.")
        observe(drafter, two, _BEFORE[step])
        drafter.commit(TEXT[step : step + 1])


def global_randomness_is_left_alone(subject: Subject) -> None:
    """Check that torch's global generator is neither read nor moved."""
    first, saved = subject.drafts(DEPTH), torch.get_rng_state()
    try:
        torch.manual_seed(20_141)  # any but that of the first walk
        before = torch.get_rng_state()
        same = all(alike(*pair) for pair in zip(first, walk(subject.make(), subject.shape(DEPTH)), strict=True))
        moved = not torch.equal(before, torch.get_rng_state())
    finally:
        torch.set_rng_state(saved)
    require(not moved and same, "A draft depends on torch's global generator: draw with TextStart.generator.")


def q_is_the_law_of_the_draws(subject: Subject) -> None:
    """Enumerate all drafts of two tokens that may follow `PROMPT`, and check that each token has the chance that its
    row of `Draft.q` says. Raises Unfollowed: see `Enumeration`. Trees are enumerated with their acceptance.
    """
    drafter, shape, enumeration = subject.make(), subject.shape(2), Enumeration()
    if drafter.capabilities.needs_reference:
        raise SkipTest("it reads a recorded text, whose drafts are no draws")

    def run() -> Draft:
        drafter.start(TextStart(PROMPT, 1000, generator=enumeration.generator), states(drafter, PROMPT[:-1]))
        return drafter.draft(shape)

    drawn: dict[tuple[int, ...], Tensor] = {}  # after a path, the chances [V] with which the next token was drawn
    told: dict[tuple[int, ...], Tensor] = {}
    for chance, draft in enumeration.outcomes(run):
        tokens = tuple(draft.tokens.tolist())
        for depth, row in enumerate(() if draft.q is None else draft.q.double()):
            path = tokens[:depth]
            same = torch.equal(told.setdefault(path, row), row)
            require(same, "After one path, two drafts tell different rows of q.")
            drawn.setdefault(path, torch.zeros_like(row))[tokens[depth]] += chance
    for path, chances in drawn.items():
        error = float((chances / chances.sum() - told[path]).abs().max())
        sentence = f"Draft.q is not the law that tokens are drawn from: a chance is wrong by {error:.1e}."
        require(error < _SINGLE, sentence)


def nothing_is_drafted_where_nothing_fits(subject: Subject) -> None:
    """Check the draft for a structure without nodes, which ends of texts ask for."""
    empty = begin(subject.make()).draft(subject.shape(4).clamped(0))
    nothing = len(empty) == 0 and empty.tokens.shape == (0,) and empty.source == ()
    require(nothing, "A draft should be empty where the structure has no nodes: the text ends there.")


def a_new_text_starts_from_nothing(subject: Subject) -> None:
    """Check that drafts after `start` do not depend on the text before."""
    used, shape = begin(subject.make(), [4, 4, 4, 2, 2, 4, 4], [2, 4, 4], seed=9), subject.shape(DEPTH)
    observe(used, used.draft(shape), 2)
    used.commit([2, 4])
    same = all(alike(*pair) for pair in zip(walk(used, shape), subject.drafts(DEPTH), strict=True))
    require(same, "Drafts of a text depend on the text before: `start` should forget it (`remember` may keep).")


def a_round_may_be_drafted_by_another(subject: Subject) -> None:
    """Check that a drafter keeps up with rounds that it did not draft, or whose drafts were rejected."""
    drafter, shape = begin(subject.make()), subject.shape(3)
    drafter.draft(shape)
    for first, last in ((0, 2), (2, 5), (5, 6)):
        commit(drafter, first, last)
    draft, fresh = drafter.draft(shape), begin(subject.make(), [*PROMPT, *TEXT[:6]], TEXT[6:])
    require_same(drafter, draft, fresh.draft(shape), "after rounds of another drafter")


def a_rejection_leaves_nothing_stale(subject: Subject) -> None:
    """Check after every round of a text, whose drafts are rejected wherever they do not happen to agree with it, that
    the next draft is that of a new drafter, which has seen no draft at all.
    """
    drafter, shape = subject.make(), subject.shape(3)
    if not forgets_rounds(drafter):
        raise SkipTest(f"it declares replay={drafter.capabilities.replay!r}: drafts depend on earlier rounds")
    begin(drafter)
    for position in range(len(TEXT) - 1):
        draft, fresh = drafter.draft(shape), begin(subject.make(), [*PROMPT, *TEXT[:position]], TEXT[position:])
        require_same(drafter, draft, fresh.draft(shape), f"after {position} rounds")
        commit(drafter, position, position + 1)


def tokens_taken_back_leave_no_trace(subject: Subject) -> None:
    """Check that a drafter which takes tokens back drafts for the shorter text, and for the text that replaces it."""
    drafter, shape = begin(subject.make()), subject.shape(3)
    drafter.draft(shape)
    drafter.commit(TEXT[:2])
    if not drafter.retract(2):
        raise SkipTest("it is started anew: `retract` says that it cannot take tokens back")

    def take_back(tokens: int) -> None:
        require(drafter.retract(tokens), "`retract` took tokens back before, and now says that it cannot.")

    begin(drafter)
    for kept, wrong in ((2, [4, 4]), (3, [0, 3, 1]), (6, [2])):
        drafter.draft(shape)
        drafter.commit([*TEXT[:kept], *wrong][-len(wrong) - 1 :])
        drafter.draft(shape)
        take_back(len(wrong) + 1)
        fresh = begin(subject.make())
        require_same(drafter, drafter.draft(shape), fresh.draft(shape), "after tokens were taken back")
        commit(drafter, 0, kept)
        begin(fresh, [*PROMPT, *TEXT[:kept]])
        require_same(drafter, drafter.draft(shape), fresh.draft(shape), "after others replaced them")
        take_back(kept)
        # And where several other tokens follow at once, with no draft in between.
        drafter.commit(wrong * 3)
        drafter.draft(shape)
        take_back(3 * len(wrong))
        commit(drafter, 0, kept)
        require_same(drafter, drafter.draft(shape), fresh.draft(shape), "after several replaced them at once")
        take_back(kept)


def a_replay_by_position_is_right(subject: Subject) -> None:
    """Check replay="position" (theory.md 4.2): a position has one token or law, wherever rounds begin, however deep."""
    drafter = subject.make()
    if drafter.capabilities.replay != "position":
        raise SkipTest(f"it declares replay={drafter.capabilities.replay!r}")
    seen: dict[int, Tensor] = {}
    for gamma in (1, 2, 3, 5):
        begin(drafter)
        for position in range(len(TEXT)):
            draft = drafter.draft(subject.shape(gamma).clamped(len(TEXT) - position))
            for offset, law in enumerate(draft.tokens if draft.q is None else draft.q):
                if draft.tokens[:offset].tolist() == list(TEXT[position : position + offset]):
                    same = _same_law(seen.setdefault(position + offset, law), law)
                    require(same, "A proposal depends on where its round began: declare replay='start'.")
            drafter.commit(TEXT[position : position + 1])
    if drafter.laws(PROMPT, TEXT) is not None:
        require(len(seen) == len(TEXT), "`laws` has a law for every token, and at some nothing is proposed.")


def a_replay_from_starts_is_right(subject: Subject) -> None:
    """Check what replay="start" declares: at a position the same tokens, or the same laws, are proposed however the
    rounds before it went; `chances` has those of the text.
    """
    drafter, shape = subject.make(), subject.shape(3)
    if drafter.capabilities.replay != "start":
        raise SkipTest(f"it declares replay={drafter.capabilities.replay!r}")
    given = states(drafter, [*PROMPT, *TEXT[:-1]]) if drafter.capabilities.reads_states else None
    chances = drafter.chances(PROMPT, TEXT, given, 3)
    if chances is not None:
        fits = chances.shape == (len(TEXT), 3) and not chances[-1, 1:].any()
        require(fits, "`chances` should be [tokens of the text, depth], and 0 beyond the text.")
    seen: dict[tuple[int, int], Tensor] = {}
    for step in (1, 2, 5):
        begin(drafter)
        for position in range(0, len(TEXT), step):
            draft = drafter.draft(shape)
            for depth, token in enumerate(TEXT[position : position + len(draft)]):
                law = draft.tokens[depth] if draft.q is None else draft.q[depth]
                same = _same_law(seen.setdefault((position, depth), law), law)
                require(same, "A proposal depends on earlier rounds: declare replay='copying', or none.")
                if chances is not None:
                    q = float(law == token) if draft.q is None else float(law[token])
                    told = abs(float(chances[position, depth]) - q) <= 1e-5 * q
                    require(told, "`chances` has another chance than the q of the draft there.")
                if token != int(draft.tokens[depth]):
                    break  # the laws below are those of another path
            commit(drafter, position, position + step)


def _same_law(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one.double(), other.double(), rtol=1e-5, atol=1e-7)


def forgets_rounds(drafter: Drafter) -> bool:
    """Return whether a drafter declares that its proposals follow from the text and from where the round began."""
    return drafter.capabilities.replay in ("position", "start") and not drafter.capabilities.needs_reference


def require_same(drafter: Drafter, one: Draft, other: Draft, when: str) -> None:
    """Check two drafts after one text, where they follow from it: equal, or first tokens drawn from one law."""
    if not forgets_rounds(drafter):
        return
    if one.q is None or other.q is None:
        same = one.q is other.q and alike(one, other)
    else:
        same = _same_law(one.q[:1], other.q[:1])
    require(same, f"A draft {when} is not that of a new drafter with the same text: something stale was left behind.")


CHECKS: tuple[Callable[[Subject], None], ...] = (
    drafts_are_well_formed,
    draws_are_of_the_children,
    q_can_have_given_the_token,
    the_same_generator_gives_the_same_drafts,
    without_q_the_draft_follows_from_its_state,
    global_randomness_is_left_alone,
    nothing_is_drafted_where_nothing_fits,
    a_new_text_starts_from_nothing,
    a_round_may_be_drafted_by_another,
    a_rejection_leaves_nothing_stale,
    tokens_taken_back_leave_no_trace,
)
"""Checks that a drafter has to pass with each structure that it fills."""

CHAIN_CHECKS: tuple[Callable[[Subject], None], ...] = (
    q_is_the_law_of_the_draws,
    a_replay_by_position_is_right,
    a_replay_from_starts_is_right,
)
"""Checks of a drafter that fills chains: of other structures they do not tell."""
