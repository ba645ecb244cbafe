"""The loop: draft, verify, accept, commit (Leviathan et al. 2211.17192, Algorithm 1). Knows no method by name.

The four verbs are timed; keeping the record of a round happens between rounds and is in no duration.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specdec.clock import Clock
from specdec.drafters.base import Drafter
from specdec.errors import NumericsError
from specdec.observe import Decided, record
from specdec.records import Generation, Marks, Request, Round, TextStart
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.verifiers.base import Verifier


def cut(tokens: Sequence[int], room: int, end_tokens: frozenset[int]) -> tuple[int, ...]:
    """Return the tokens that a text takes of those written, of a round the accepted ones and the next one: at most
    `room`, up to an end token. This is the project's one rule of token accounting: the end token counts, nothing after
    it does.
    """
    kept = tuple(tokens[:room])
    for index, token in enumerate(kept):
        if token in end_tokens:
            return kept[: index + 1]
    return kept


def decode_round(
    target: Target,
    drafter: Drafter,
    verifier: Verifier,
    structure: Structure,
    generator: torch.Generator | None,
    clock: Clock,
    room: int | None = None,
) -> tuple[Decided, Marks]:
    """Make the next round of a text that target and drafter have begun; return it, and readings of the clock. The
    `generator` is that of acceptance decisions. As many as `room` tokens may still be written; None where neither a
    limit nor an end token ends the text.
    """
    before, start = clock.watch.read(), clock.mark()
    # 1. Draft: nothing is offered beyond the last token, which the target gives for free.
    draft = drafter.draft(structure if room is None else structure.clamped(room - 1))
    drafted = clock.mark()
    # 2. Verify: one call of the target over root and draft.
    p = target.verify(draft)
    verified = clock.mark()
    # 3. Accept: here the host waits for the device, once in a round.
    acceptance = target.agreed(draft, verifier.accept(draft, p, generator))
    accepted = clock.mark()
    # 4. Commit.
    committed = (*(acceptance.tokens[node] for node in acceptance.path), acceptance.next_token)
    if room is not None:
        committed = cut(committed, room, target.end_tokens)
    target.commit(acceptance.path, acceptance.next_token)
    restored = clock.mark() if target.keeps_state else None
    if drafter.capabilities.reads_logits:
        assert target.logits is not None
        drafter.observe(draft, target.logits)
    drafter.commit(committed, target.states)
    marks = Marks(start, drafted, verified, accepted, clock.mark(), (before, clock.watch.read()), restored)
    chain = structure.branches == 1 and draft.tree.is_chain
    return Decided(draft, p, acceptance, committed, chain), marks


@dataclass
class GrowingText:
    """A text that is being decoded, alone or in a batch."""

    request: Request
    prefill: tuple[object, object]  # clock readings before and after it
    tokens: list[int] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    finish: str = ""  # what has ended it, see `Generation`; "" while it grows

    @property
    def room(self) -> int:
        """Tokens that may still be written."""
        return self.request.max_new_tokens - len(self.tokens)

    def add(
        self, decided: Decided, verifier: Verifier, marks: Marks, end_tokens: frozenset[int], batch: int = 1
    ) -> None:
        """Append a round, which may end the text; `batch` sequences shared its step."""
        context = len(self.request.prompt) + len(self.tokens)
        self.tokens.extend(decided.committed)
        if self.tokens[-1] in end_tokens:
            self.finish = "end_token"
        elif self.room == 0:
            self.finish = "limit"
        self.rounds.append(record(decided, verifier, context, self.finish, marks, batch))

    def generation(self, watched: tuple[float, float] = (0.0, 0.0)) -> Generation:
        """Return the text as it is; "failed" where nothing has ended it."""
        prompt, finish = tuple(self.request.prompt), self.finish or "failed"
        return Generation(prompt, tuple(self.tokens), tuple(self.rounds), self.prefill, finish, watched)


@torch.inference_mode()
def generate(
    target: Target, drafter: Drafter, verifier: Verifier, structure: Structure, request: Request, clock: Clock
) -> Generation:
    """Decode one prompt to its end token or to the request's limit. NumericsError where the target's logits are not
    finite: its `partial` has the rounds before.
    """
    prompt, before, began = tuple(request.prompt), clock.watch.read(), clock.mark()
    length = len(prompt) + request.max_new_tokens
    target.start(TextStart(prompt, length + target.room(structure.tree), structure.branches))
    random, reference = request.draft_generator, request.reference
    drafts = TextStart(prompt, length + structure.nodes + 1, generator=random, reference=reference, in_step=True)
    drafter.start(drafts, target.states)
    text, watched = GrowingText(request, (began, clock.mark())), (before, clock.watch.read())
    generator = request.accept_generator
    while not text.finish:
        try:
            decided, marks = decode_round(target, drafter, verifier, structure, generator, clock, text.room)
        except NumericsError as error:
            error.partial = text.generation()
            raise
        text.add(decided, verifier, marks, target.end_tokens)
    return text.generation(watched)
