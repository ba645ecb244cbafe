"""The loop of `decode` for several sequences at once, with continuous batching: the slot of a finished sequence is
given to the next request. Knows no method by name.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch

from specdec.batching.batch_parts import BatchTarget
from specdec.clock import Clock
from specdec.decode import GrowingText, cut
from specdec.drafters.base import BatchDrafter
from specdec.errors import NumericsError
from specdec.observe import Decided
from specdec.records import Generation, Marks, Request, Round, TextStart
from specdec.structures.base import Structure
from specdec.verifiers.base import Verifier


@dataclass(frozen=True)
class BatchStep:
    """One cycle of draft, verify, accept and commit, of all active sequences together; times are seconds."""

    rounds: Sequence[Round]  # of the sequences that were active
    draft_s: float
    verify_s: float
    accept_s: float
    commit_s: float
    prefill_s: float  # of the sequences that began right before it

    @property
    def tokens(self) -> int:
        """Tokens appended to all texts together."""
        return sum(len(each.committed) for each in self.rounds)

    @property
    def seconds(self) -> float:
        """Seconds of the step, prefills apart."""
        return self.draft_s + self.verify_s + self.accept_s + self.commit_s


class BatchDecoded(NamedTuple):
    generations: list[Generation]  # one for each request, in their order
    steps: list[BatchStep]  # in their order


@torch.inference_mode()
def decode_batch(
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
    active in it (`Round.batch`), so that rounds add up to the total. Raises NumericsError: the target's logits were not
    finite; `partials` holds, by place of the request, what was decoded before.
    """
    longest = max((len(each.prompt) + each.max_new_tokens for each in requests), default=0)
    room = target.target.room(structure.tree)
    target.reserve(longest + room)
    drafter.reserve(longest + structure.nodes + 1)
    waiting, free = deque(enumerate(requests)), list(reversed(range(target.slots)))
    active: dict[int, GrowingText] = {}  # by slot
    places: dict[int, int] = {}  # of their requests, by slot
    done: dict[int, Generation] = {}
    steps: list[tuple[list[Round], list[tuple[object, object]]]] = []  # rounds and prefills, before seconds are known
    while waiting or active:
        prefills: list[tuple[object, object]] = []
        try:
            while waiting and free:
                slot, (place, request) = free.pop(), waiting.popleft()
                prompt, began = tuple(request.prompt), clock.mark()
                length = len(prompt) + request.max_new_tokens
                target.start(slot, TextStart(prompt, length + room))
                text = TextStart(
                    prompt, length + structure.nodes + 1, generator=request.draft_generator, reference=request.reference
                )
                drafter.texts[slot].start(text, target.states.get(slot))
                prefills.append((began, clock.mark()))
                active[slot], places[slot] = GrowingText(request, prefills[-1]), place
            steps.append((_step(target, drafter, verifier, structure, clock, active), prefills))
        except NumericsError as error:
            error.partials = {**done, **{places[slot]: each.generation() for slot, each in active.items()}}
            raise
        for slot in [slot for slot, each in active.items() if each.finish]:
            done[places[slot]] = active.pop(slot).generation()
            free.append(slot)
            target.release(slot)
            drafter.release(slot)
    clock.synchronize()
    measured = []
    for rounds, prefills in steps:
        marks = rounds[0].marks
        verbs = pairwise([marks.start, marks.drafted, marks.verified, marks.accepted, marks.committed])
        draft_s, verify_s, accept_s, commit_s = (clock.seconds(*each) for each in verbs)
        prefill_s = sum(clock.seconds(*each) for each in prefills)
        measured.append(BatchStep(rounds, draft_s, verify_s, accept_s, commit_s, prefill_s))
    return BatchDecoded([done[place] for place in range(len(requests))], measured)


def _step(
    target: BatchTarget,
    drafter: BatchDrafter,
    verifier: Verifier,
    structure: Structure,
    clock: Clock,
    active: Mapping[int, GrowingText],
) -> list[Round]:
    before, start = clock.watch.read(), clock.mark()
    # 1. Draft: nothing is offered beyond the last token, which the target gives for free.
    drafts = drafter.draft({slot: structure.clamped(each.room - 1) for slot, each in active.items()})
    drafted = clock.mark()
    # 2. Verify: one call of the target over the root and the draft of every sequence.
    p = target.verify({slot: drafts[slot] for slot in active})
    verified = clock.mark()
    # 3. Accept.
    decisions = {
        slot: verifier.accept(drafts[slot], p[slot], each.request.accept_generator) for slot, each in active.items()
    }
    accepted = clock.mark()
    # 4. Commit.
    committed: dict[int, tuple[int, ...]] = {}
    for slot, each in active.items():
        decision = decisions[slot]
        written = [*(decision.tokens[node] for node in decision.path), decision.next_token]
        committed[slot] = cut(written, each.room, target.target.end_tokens)
        target.commit(slot, decision.path, decision.next_token)
        own = drafter.texts[slot]
        if own.capabilities.reads_logits:
            own.observe(drafts[slot], target.logits[slot])
        own.commit(committed[slot], target.states.get(slot))
    marks = Marks(start, drafted, verified, accepted, clock.mark(), (before, clock.watch.read()))
    for slot, each in active.items():
        chain = structure.branches == 1 and drafts[slot].tree.is_chain
        decided = Decided(drafts[slot], p[slot], decisions[slot], committed[slot], chain)
        each.add(decided, verifier, marks, target.target.end_tokens, len(active))
    return [each.rounds[-1] for each in active.values()]
