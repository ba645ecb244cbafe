"""Jacobi decoding: guesses of the next tokens, each replaced by the target's own choice after the guesses before it."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from specdec.config import Named, typed
from specdec.drafters.base import Drafter, DrafterCapabilities, drafters
from specdec.records import EMPTY, Draft, TextStart, chain_draft
from specdec.structures.base import Structure
from specdec.targets.base import Target


@typed
class JacobiConfig(Named):
    guess: Literal["repeat", "prompt"]


@drafters.register("jacobi")
class Jacobi(Drafter):
    """Offers the chain that the last call of the target gave for the coming positions (Santilli et al. 2305.10427,
    Algorithm 1: Jacobi's fixed-point iteration; the window of guesses moves on with the text).

    With guesses y_1, ..., y_g after the root, one call gives a_i, the token that the target puts first after the root
    and y_1, ..., y_i, for i = 0, ..., g. The next guess for position i + 1 is a_i. What a round commits takes as many
    positions off the front, and the guesses behind stay as they are, also those that were made after a rejected token.
    A position that no call has looked at yet is filled by `guess`:

    - "repeat": the token before it once more.
    - "prompt": a token of the prompt, which is gone through in turn. Position t of prompt and output, counted from 0,
      gets the prompt's token t modulo its length. There is no randomness.

    The choice a_i is the most likely token at every temperature, so q is a point mass. A draft costs nothing but a copy
    on the target's device, learning from a call an argmax over its logits; the host waits for neither. Needs nothing.
    """

    capabilities = DrafterCapabilities(fills=frozenset({"chain"}), reads_logits=True, replay="calling")

    def __init__(self, config: JacobiConfig, target: Target) -> None:
        self._guess, self._device = config.guess, target.device
        self.start(TextStart((0,), 1))

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self._prompt = torch.tensor(list(text.prompt), device=self._device)
        self._length = len(text.prompt)  # of prompt and output, the root included
        self._root = self._prompt[-1:]
        self._guesses = self._prompt[:0]  # for the positions after the root

    def draft(self, structure: Structure) -> Draft:
        gamma = structure.gamma
        if gamma == 0:
            return EMPTY
        tokens = self._guesses[:gamma]
        missing = gamma - len(tokens)
        if missing and self._guess == "repeat":
            before = tokens[-1:] if len(tokens) else self._root
            tokens = torch.cat([tokens, before.expand(missing)])
        elif missing:
            places = torch.arange(self._length + len(tokens), self._length + gamma, device=self._device)
            tokens = torch.cat([tokens, self._prompt[places % len(self._prompt)]])
        return chain_draft(tokens, "jacobi")

    def observe(self, draft: Draft, logits: Tensor) -> None:
        """See `Drafter.observe`. Of another drafter's draft, which may branch, the path of first children counts."""
        path = [0]
        while children := draft.tree.children[path[-1]]:
            path.append(children[0] + 1)
        seen = logits if len(path) == len(logits) else logits[path]
        # Guesses beyond the draft, which another structure or drafter may have cut, stay for later.
        self._guesses = torch.cat([seen.argmax(-1), self._guesses[len(path) :]])

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        self._guesses = self._guesses[len(tokens) :]
        self._length += len(tokens)
        self._root = torch.full((1,), tokens[-1], device=self._device)  # written there: copying would wait for it
