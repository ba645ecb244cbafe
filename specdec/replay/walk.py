"""Walks along texts that are written already: what a drafter drafts wherever a round begins, or at every position, and
which nodes of it are the text's. The rounds that drafters which look tokens up take are kept in columns.

The target's hidden state of a token depends on the tokens before it alone. So those of every round follow from one pass
over the whole text, and are what they were in decoding up to rounding. The logits over a draft need a call on it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specdec.clock import Clock
from specdec.drafters.base import Drafter
from specdec.drafters.base.lookup import Lookup
from specdec.records import EMPTY, Request, Source, TextStart, Tree
from specdec.sampling import probabilities
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.text.streams import Stream
from specdec.tree_building.lookup_filling import Proposal
from specdec.tree_building.possible_rounds import PossibleRounds, chain_rounds

NONE = Source("", 0)  # of a round without a proposal


def agreed(tree: Tree, tokens: Sequence[int], text: Sequence[int], position: int = 0) -> Sequence[int]:
    """Return the nodes of a draft that are the text's from `position` on, root first: siblings differ, so one way."""
    if tree.is_chain:
        at, size = position, len(text)
        for token in tokens:
            if at == size or token != text[at]:
                break
            at += 1
        return range(at - position)
    children, path = tree.children, [-1]
    for wanted in text[position : position + tree.depth]:
        for child in children[path[-1] + 1]:
            if tokens[child] == wanted:
                path.append(child)
                break
        else:
            break
    return path[1:]


class TextReading:
    """Hidden states and laws that a target has along a text, each from one teacher-forced pass. Those of the last text
    are kept, because walks of several drafters, at several gammas, ask for them again.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._read, self._scored = tuple[int, ...](), tuple[int, ...]()
        self._states: Tensor | None = None
        self._laws: Tensor | None = None

    @torch.inference_mode()
    def states(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor | None:
        """Return `Target.states` [S+N-1, D] of all tokens of prompt and text but the last; None where none are kept.

        They come from the prefill of prompt and text, which is what a target can do with a text of any length: in
        chunks, without logits, in the arithmetic of decoding, and into its cache, whose own text is lost.
        """
        tokens = (*prompt, *text)
        if tokens != self._read:
            self.target.start(TextStart(tokens, len(tokens) + 1))
            self._read, self._states = tokens, self.target.states
        return self._states

    @torch.inference_mode()
    def laws(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        """Return the target's laws [N, V] of the tokens of a text behind its prompt."""
        tokens = (len(prompt), *prompt, *text)
        if self._laws is None or tokens != self._scored:
            self._laws = None  # not held beside the next ones
            self._laws = probabilities(self.target.score(prompt, text)[:-1], self.target.sampling)
            self._scored = tokens
        return self._laws


Step = tuple[int, int, Proposal, Sequence[int]]
"""A draft along a text: the number of the structure that was asked for, the tokens of the text before the draft, the
draft in plain numbers, and its nodes that are the text's, from the root down."""


class Led:
    """A drafter on its way along a text, which gets what it reads of the target after each round.

    States come from `reading`, which walks along the same text share; None for a drafter that reads nothing of the
    target. Where the replay is "calling", its target is called on every draft as in decoding. With a clock drafts are
    timed, and made as in decoding; without one those of look-ups stay plain numbers.
    """

    def __init__(self, drafter: Drafter, reading: TextReading | None, clock: Clock | None = None) -> None:
        self.q: Tensor | None = None  # [N, V] of the last draft; None for point masses
        self.marks: list[tuple[object, object]] = []  # by the clock before and after each draft, and each commit
        self._drafter, self._reading, self._clock = drafter, reading, clock
        self._target = None if reading is None else reading.target
        self._calls = drafter.capabilities.replay == "calling"
        self._draft = EMPTY
        self._states: Tensor | None = None  # of the whole text
        self._place = 0  # of the root among the tokens of prompt and text
        self.propose: Callable[[Structure], Proposal] = self._propose
        if isinstance(drafter, Lookup) and not self._calls and clock is None:
            self.propose = drafter.propose

    def steps(
        self,
        request: Request,
        text: Sequence[int],
        structures: Sequence[Structure],
        every: bool = False,
        propose: Callable[[Structure, int], Proposal] | None = None,
    ) -> Iterator[Step]:
        """Yield the rounds in which greedy decoding writes `text`, by position; or the drafts at every position of it.

        Args:
            request: what the text answers, and the limit of the output: nothing is offered beyond its last token.
            structures: of the drafts; of several, rounds are mixed, so that none may depend on those before it.
            propose: drafts what a structure asks for at a position, in place of `Led.propose`.
        """
        text, limit = tuple(text), request.max_new_tokens
        largest = max(structures, key=lambda structure: structure.nodes)
        length, self._place = len(request.prompt) + len(text), len(request.prompt) - 1
        given = self._states = None
        if self._calls:
            assert self._target is not None
            room = self._target.room(largest.tree)
            self._target.start(TextStart(request.prompt, length + room, largest.branches))
            given = self._target.states
        elif self._drafter.capabilities.reads_states:
            assert self._reading is not None
            self._states = self._reading.states(request.prompt, text)
            given = None if self._states is None else self._states[: self._place]
        random, reference = request.draft_generator, request.reference
        start = TextStart(request.prompt, length + largest.nodes + 1, generator=random, reference=reference)
        self._drafter.start(start, given)
        due: dict[int, list[int]] = {0: list(range(len(structures)))}  # the structures whose next draft begins there
        known = 0  # tokens that the drafter was told of
        own = self.propose
        path: Sequence[int] = ()
        for position in range(len(text)):
            here = due.pop(position, None)
            if here is None:
                continue
            if known < position:
                self._commit(text[known:position], None if every else path)
                known = position
            room = limit - position - 1
            for number in here:
                shape = structures[number]
                shape = shape if shape.gamma <= room else shape.clamped(room)
                proposal = own(shape) if propose is None else propose(shape, position)
                path = agreed(proposal.tree, proposal.tokens, text, position)
                yield number, position, proposal, path
                due.setdefault(position + (1 if every else len(path) + 1), []).append(number)
        if text:
            self._commit(text[known:], None if every else path)

    def _propose(self, structure: Structure) -> Proposal:
        start = self._clock and self._clock.mark()
        self._draft = draft = self._drafter.draft(structure)
        if self._clock is not None:
            self.marks.append((start, self._clock.mark()))
        self.q = draft.q
        return Proposal(tuple(draft.tokens.tolist()), draft.tree, draft.source)

    def _commit(self, tokens: Sequence[int], path: Sequence[int] | None) -> None:
        """Have target and drafter do their part of a round, whose `tokens` are those of the path, the nodes of the last
        draft that are the text's, and the one behind it, fewer at the end. Path None: a round without a draft.
        """
        given, draft = None, EMPTY if path is None else self._draft
        if self._calls:
            assert self._target is not None
            p = self._target.verify(draft)
            # No acceptance waits for the device here, and `commit` reads what has arrived by then.
            p[0, 0].item()
            self._target.commit(path or (), tokens[-1])
            given = self._target.states
        elif self._states is not None:
            given = self._states[self._place : self._place + len(tokens)]
            self._place += len(tokens)
        start = self._clock and self._clock.mark()
        if self._calls and self._drafter.capabilities.reads_logits:
            assert self._target is not None and self._target.logits is not None
            self._drafter.observe(draft, self._target.logits)
        self._drafter.commit(tokens, given)
        if self._clock is not None:
            self.marks.append((start, self._clock.mark()))


# Rounds in columns --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RoundColumns:
    """The rounds of one output in columns [R]; see `records.Round` for the terms."""

    tokens: int  # committed in all rounds
    position: np.ndarray  # tokens of the text before the round
    offered: np.ndarray  # the depth of the draft
    nodes: np.ndarray
    leaves: np.ndarray  # its paths
    accepted: np.ndarray  # what of its depth became text
    rank: np.ndarray  # of the last accepted node, or of the first offered one where none was accepted
    rejected: np.ndarray  # a rejection was observed
    strategy: np.ndarray  # of the same node, by its number in `strategies`
    strategies: tuple[str, ...]
    proposals: Sequence[Proposal] | None = None  # the drafts themselves; None where the rounds follow without them

    def __len__(self) -> int:
        return len(self.position)

    @property
    def committed(self) -> np.ndarray:
        """Tokens [R] appended to the text in each round: up to where the next one begins."""
        return np.diff(self.position, append=self.tokens)


def walk(drafter: Lookup, structures: Sequence[Structure], request: Request, text: Sequence[int]) -> list[RoundColumns]:
    """Return the rounds in which greedy decoding writes `text`, the recorded tokens up to the limit, with drafts of
    each structure. The request's limit is more than these where an end token ends them before.

    They are those of `generate` on target=replay. A drafter that depends on earlier rounds (its replay is "copying") is
    led along the text once for each structure.
    """
    possible = drafter.possible_rounds(request.prompt, text, request.max_new_tokens, structures)
    known = {number: taken(rounds) for number, rounds in enumerate(possible) if rounds is not None}
    drafted = [number for number in range(len(structures)) if number not in known]
    together = drafter.capabilities.replay in ("position", "start")
    for group in [drafted] if together and drafted else [[number] for number in drafted]:
        columns = _drafted(drafter, [structures[number] for number in group], request, text)
        known |= zip(group, columns, strict=True)
    return [known[number] for number in range(len(structures))]


def replay_stream(drafter: Lookup, structure: Structure, stream: Stream, max_new_tokens: int) -> RoundColumns:
    """Return the rounds in which greedy decoding writes `stream`, or its first `max_new_tokens`."""
    limit = stream.limit(max_new_tokens)
    text = stream.generated[:limit]
    return walk(drafter, [structure], Request(stream.prompt, limit, reference=text), text)[0]


def _drafted(
    drafter: Lookup, structures: Sequence[Structure], request: Request, text: Sequence[int]
) -> list[RoundColumns]:
    """Lead a drafter along `text` and return its rounds with each structure."""
    size = len(text)
    strategies: dict[str, int] = {}  # name: number
    rounds: list[list[tuple[int, ...]]] = [[] for _ in structures]
    proposals: list[list[Proposal]] = [[] for _ in structures]
    # The loop runs once a round, a few microseconds long.
    for number, position, proposal, path in Led(drafter, reading=None).steps(request, text, structures):
        tokens, tree, source = proposal
        accepted, last = len(path), path[-1] if path else -1
        # A draft that agrees to the end of the text was cut there: what came after it is not known.
        rejected = accepted < size - position and bool(tree.children[last + 1])
        name, rank = source[max(last, 0)] if source else NONE
        strategy, leaves = strategies.setdefault(name, len(strategies)), len(tree.leaves)
        rounds[number].append((position, tree.depth, len(tokens), leaves, accepted, rank, rejected, strategy))
        proposals[number].append(proposal)
    made = []
    for rows, drafts in zip(rounds, proposals, strict=True):
        table = np.array(rows, dtype=np.int32).reshape(-1, 8).T.copy()
        columns = dict(zip(("position", "offered", "nodes", "leaves", "accepted", "rank"), table, strict=False))
        columns |= {"rejected": table[6].astype(bool), "strategy": table[7].astype(np.int16)}
        made.append(RoundColumns(tokens=size, **columns, strategies=tuple(strategies), proposals=drafts))
    return made


def taken(possible: PossibleRounds) -> RoundColumns:
    """Return the rounds that are taken: each begins behind what the one before it committed."""
    size = len(possible.accepted)
    following: list[int] = (np.arange(size) + possible.accepted + 1).tolist()
    begins, position = [], 0
    while position < size:
        begins.append(position)
        position = following[position]
    at = np.array(begins, dtype=np.int32)
    columns = possible.offered, possible.nodes, possible.leaves, possible.accepted, possible.rank
    offered, nodes, leaves, accepted, rank = (column[at].astype(np.int32) for column in columns)
    # A draft that agrees to the end of the text was cut there: what came after it is not known.
    rejected = ~possible.ended[at] & (accepted < size - at)
    strategy = (offered == 0).astype(np.int16)
    strategies = possible.strategy, NONE.strategy
    return RoundColumns(size, at, offered, nodes, leaves, accepted, rank, rejected, strategy, strategies)


def plain_columns(size: int) -> RoundColumns:
    """Return the rounds of plain decoding of a text of `size` tokens: one for each."""
    nothing = np.zeros(size, dtype=np.int64)
    return taken(chain_rounds(nothing, nothing, NONE.strategy))
