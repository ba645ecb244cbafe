"""The target's side of a text that is written already: what a drafter that is led along the text gets to read of it.

The target's hidden state of a token depends on the tokens before it alone. So those of every round follow from one pass
over the whole text, and are what they were in decoding up to rounding. The logits over a draft need a call on it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from specdec.drafters.base import Drafter
from specdec.records import EMPTY, Draft, Request, TextStart
from specdec.structures.base import Structure
from specdec.targets.base import Target


class TextStates:
    """The hidden states of texts, each from one teacher-forced pass; the last text's are kept, because walks at several
    gammas ask for them again.

    They come from the prefill of prompt and text, which is what a target can do with a text of any length: in chunks,
    without logits, in the arithmetic of decoding, and into its cache, whose own text is lost.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._tokens: tuple[int, ...] = ()
        self._states: Tensor | None = None

    @torch.inference_mode()
    def of(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor | None:
        """Return `Target.states` [S+N-1, D] of all tokens of prompt and text but the last; None where none are kept."""
        tokens = (*prompt, *text)
        if tokens != self._tokens:
            self._target.start(TextStart(tokens, len(tokens) + 1))
            self._tokens, self._states = tokens, self._target.states
        return self._states


class Led:
    """A drafter on its way along a text, which gets what it reads of the target after each round.

    States come from `TextStates`. Where the replay is "calling", the target is called on every draft as in decoding.
    """

    def __init__(self, drafter: Drafter, target: Target, states: TextStates | None = None) -> None:
        """
        Args:
            states: shared between walks along the same text.
        """
        self._drafter, self._target = drafter, target
        self._texts = states or TextStates(target)
        self._calls = drafter.capabilities.replay == "calling"
        self._states: Tensor | None = None  # of the whole text
        self._given: Tensor | None = None  # of the last round
        self._place = 0  # of the root among the tokens of prompt and text

    def start(self, request: Request, text: Sequence[int], structure: Structure) -> None:
        """Begin before the first token of `text`.

        Args:
            request: what the text answers.
            structure: of the largest drafts to come.
        """
        self._states = self._given = None
        length, self._place = len(request.prompt) + len(text), len(request.prompt) - 1
        if self._calls:
            room = self._target.room(structure.tree)
            self._target.start(TextStart(request.prompt, length + room, structure.branches))
            self._given = self._target.states
        elif self._drafter.capabilities.reads_states:
            self._states = self._texts.of(request.prompt, text)
            self._given = None if self._states is None else self._states[: self._place]
        random, reference = request.draft_generator, request.reference
        start = TextStart(request.prompt, length + structure.nodes + 1, generator=random, reference=reference)
        self._drafter.start(start, self._given)

    def answer(self, draft: Draft, path: Sequence[int], tokens: Sequence[int]) -> None:
        """Have the target do its part of a round in which the nodes `path` of `draft` were the text's.

        Args:
            tokens: those of the path and the one behind it; fewer at the end of the text.
        """
        if self._calls:
            self._target.verify(draft)
            self._target.commit(path, tokens[-1])
            self._given = self._target.states
        elif self._states is not None:
            self._given = self._states[self._place : self._place + len(tokens)]
            self._place += len(tokens)

    def commit(self, draft: Draft, tokens: Sequence[int]) -> None:
        """Tell the drafter of that round."""
        if self._calls and self._drafter.capabilities.reads_logits:
            assert self._target.logits is not None
            self._drafter.observe(draft, self._target.logits)
        self._drafter.commit(tokens, self._given)

    def step(self, token: int) -> None:
        """Go on by one token, as after a round without a draft."""
        self.answer(EMPTY, (), (token,))
        self.commit(EMPTY, (token,))
