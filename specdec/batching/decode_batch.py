"""The loop of `decode` for several sequences at once, with continuous batching: the slot of a finished sequence is
given to the next request. Knows no method by name.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from specdec.batching.batch_target import BatchTarget
from specdec.clock import Clock
from specdec.decode import cut
from specdec.drafters.base.contract import BatchDrafter
from specdec.errors import NumericsError
from specdec.observe import Decided, record
from specdec.records import Generation, Marks, Request, Round, TextStart
from specdec.structures.base import Structure
from specdec.verifiers.base import Verifier


@dataclass(frozen=True)
class BatchStep:
    """One cycle of draft, verify, accept and commit, of all active sequences together; times are seconds."""

    slots: tuple[int, ...]  # active ones
    tokens: int  # appended to all texts together
    draft_s: float
    verify_s: float
    accept_s: float
    commit_s: float
    prefills: int  # sequences that began right before it
    prefill_s: float  # of those


class BatchDecoded(NamedTuple):
    """The result of `decode_batch`."""

    generations: list[Generation]  # one for each request, in their order
    steps: list[BatchStep]  # in their order


@dataclass
class _Sequence:
    """A text that is being decoded."""

    place: int  # of its request
    request: Request
    prefill: tuple[object, object]
    tokens: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    finish: str = ""

    @property
    def room(self) -> int:
        return self.request.max_new_tokens - len(self.tokens)

    def generation(self) -> Generation:
        prompt = tuple(self.request.prompt)
        return Generation(prompt, tuple(self.tokens), tuple(self.rounds), self.prefill, self.finish or "failed")


@torch.inference_mode()
def decode_batch(
    *,
    target: BatchTarget,
    drafter: BatchDrafter,
    verifier: Verifier,
    structure: Structure,
    requests: Sequence[Request],
    clock: Clock,
) -> BatchDecoded:
    """Decode all requests, as many at once as there are slots.

    Every request brings its own generators, so that its output depends neither on the size of the batch nor on the
    order of requests. The marks of a round are those of its step; its durations are these divided by the sequences
    active in it (`Round.batch`), so that rounds add up to the total.

    Raises:
        NumericsError: the target's logits were not finite; `partials` holds, by place of the request, what was decoded
            before.
    """
    batch = _Batch(target, drafter, structure, clock)
    longest = max((len(each.prompt) + each.max_new_tokens for each in requests), default=0)
    target.reserve(longest + target.target.room(structure.tree))
    drafter.reserve(longest + structure.nodes + 1)
    waiting = deque(enumerate(requests))
    done: dict[int, Generation] = {}
    steps: list[tuple[tuple[int, ...], int, Marks, list[tuple[object, object]]]] = []  # before durations are known
    while waiting or batch.active:
        prefills: list[tuple[object, object]] = []
        try:
            while waiting and batch.free:
                prefills.append(batch.begin(*waiting.popleft()))
            slots, tokens, marks = batch.step(verifier)
        except NumericsError as error:
            unfinished = {each.place: each.generation() for each in batch.active.values()}
            error.partials = {**done, **unfinished}
            raise
        steps.append((slots, tokens, marks, prefills))
        for sequence in batch.leave():
            done[sequence.place] = sequence.generation()
    clock.synchronize()
    measured = [
        BatchStep(
            slots=slots,
            tokens=tokens,
            draft_s=clock.seconds(marks.start, marks.drafted),
            verify_s=clock.seconds(marks.drafted, marks.verified),
            accept_s=clock.seconds(marks.verified, marks.accepted),
            commit_s=clock.seconds(marks.accepted, marks.committed),
            prefills=len(prefills),
            prefill_s=sum(clock.seconds(*each) for each in prefills),
        )
        for slots, tokens, marks, prefills in steps
    ]
    return BatchDecoded([done[place] for place in range(len(requests))], measured)


class _Batch:
    """The sequences that are decoded at present, by slot."""

    def __init__(self, target: BatchTarget, drafter: BatchDrafter, structure: Structure, clock: Clock) -> None:
        self.target, self.drafter, self.structure, self.clock = target, drafter, structure, clock
        self.active: dict[int, _Sequence] = {}
        self.free = list(reversed(range(target.slots)))

    def begin(self, place: int, request: Request) -> tuple[object, object]:
        """Give a free slot to a request and prefill its prompt; return the clock's readings before and after."""
        slot, prompt = self.free.pop(), tuple(request.prompt)
        began = self.clock.mark()
        length = len(prompt) + request.max_new_tokens
        self.target.start(slot, TextStart(prompt, length + self.target.target.room(self.structure.tree)))
        drafts = TextStart(
            prompt,
            length + self.structure.nodes + 1,
            generator=request.draft_generator,
            reference=request.reference,
        )
        self.drafter.start(slot, drafts, self.target.states.get(slot))
        prefill = (began, self.clock.mark())
        self.active[slot] = _Sequence(place, request, prefill)
        return prefill

    def step(self, verifier: Verifier) -> tuple[tuple[int, ...], int, Marks]:
        """Decode one round of every active sequence; return their slots, the tokens committed, the clock's readings."""
        active, mark = self.active, self.clock.mark
        before, start = self.clock.watch.read(), mark()
        # 1. Draft: nothing is offered beyond the last token, which the target gives for free.
        drafts = self.drafter.draft({slot: self.structure.clamped(each.room - 1) for slot, each in active.items()})
        drafted = mark()
        # 2. Verify: one call of the target over the root and the draft of every sequence.
        p = self.target.verify({slot: drafts[slot] for slot in active})
        verified = mark()
        # 3. Accept.
        decisions = {
            slot: verifier.accept(drafts[slot], p[slot], each.request.accept_generator) for slot, each in active.items()
        }
        accepted = mark()
        # 4. Commit.
        committed: dict[int, tuple[int, ...]] = {}
        for slot, each in active.items():
            decision = decisions[slot]
            path_tokens = [decision.tokens[node] for node in decision.path]
            committed[slot] = cut(path_tokens, decision.next_token, each.room, self.target.target.end_tokens)
            self.target.commit(slot, decision.path, decision.next_token)
            if self.drafter.reads_logits:
                self.drafter.observe(slot, drafts[slot], self.target.logits[slot])
            self.drafter.commit(slot, committed[slot], self.target.states.get(slot))
        marks = Marks(start, drafted, verified, accepted, mark(), (before, self.clock.watch.read()))
        for slot in active:
            sequence, tokens = active[slot], committed[slot]
            context = len(sequence.request.prompt) + len(sequence.tokens)
            sequence.tokens.extend(tokens)
            if tokens[-1] in self.target.target.end_tokens:
                sequence.finish = "end_token"
            elif sequence.room == 0:
                sequence.finish = "limit"
            chain = self.structure.branches == 1 and drafts[slot].tree.is_chain
            decided = Decided(drafts[slot], p[slot], decisions[slot], tokens, chain)
            sequence.rounds.append(record(decided, verifier, context, sequence.finish, marks, len(active)))
        return tuple(active), sum(map(len, committed.values())), marks

    def leave(self) -> list[_Sequence]:
        """Free the slots of finished sequences and return these."""
        finished = {slot: each for slot, each in self.active.items() if each.finish}
        for slot in finished:
            del self.active[slot]
            self.free.append(slot)
            self.target.release(slot)
            self.drafter.release(slot)
        return list(finished.values())
