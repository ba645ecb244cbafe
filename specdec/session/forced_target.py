"""Replaces a target's decision by a recorded text, after the target has done all of its work.

For timing an engine at a known acceptance in 16-bit arithmetic, where divergences at near-ties would spoil it
(`drafter.forced=true`). A run that uses it logs no lossless metric.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specdec.records import Acceptance, Draft, TextStart
from specdec.sampling import one_hot
from specdec.targets.base import Target, TargetCapabilities


class Forced(Target):
    """Wraps a target for one text: p becomes one-hot at the recorded token of each position of a chain."""

    capabilities = TargetCapabilities(structures=frozenset({"chain"}))

    def __init__(self, target: Target, reference: Sequence[int]) -> None:
        self._target = target
        self.capabilities = replace(target.capabilities, structures=self.capabilities.structures)
        # Beyond the recorded end nothing is committed; the padding only keeps the shapes right.
        self._reference = torch.tensor([*reference, reference[-1]], device=target.device)
        self._position = 0
        self.vocab_size, self.context_length = target.vocab_size, target.context_length
        self.end_tokens, self.device = target.end_tokens, target.device
        self.tokenizer, self.sampling = target.tokenizer, target.sampling

    def start(self, text: TextStart) -> None:
        self._target.start(text)
        self.states = self._target.states
        self._position = 0

    def verify(self, draft: Draft) -> Tensor:
        self._target.verify(draft)
        self.logits = self._target.logits
        recorded = self._reference[self._position : self._position + len(draft) + 1]
        return one_hot(recorded, self.vocab_size)

    def commit(self, path: Sequence[int], next_token: int) -> None:
        self._target.commit(path, next_token)
        self.states = self._target.states
        self._position += len(path) + 1

    def agreed(self, draft: Draft, acceptance: Acceptance) -> Acceptance:
        return self._target.agreed(draft, acceptance)

    def discard(self) -> None:
        self._target.discard()

    def score(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        return self._target.score(prompt, text)
