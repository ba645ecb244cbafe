"""Shows a batch, the same text in every slot, as one target and one drafter: what times a call or a draft then times
those of a whole batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from specdec.batching.batch_target import BatchTarget
from specdec.drafters.base import BatchDrafter, Drafter
from specdec.records import Draft, TextStart
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.timing.calls import Calibration


def calibrate_batch(
    target: BatchTarget, drafter: BatchDrafter, measure: Callable[[Target, Drafter], Calibration]
) -> Calibration:
    """Return what `measure` finds of calls and drafts of the whole batch, shared evenly by its sequences."""
    whole = BatchAsTarget(target)
    found = measure(whole, _BatchAsDrafter(drafter, whole))

    def shared(times: dict[int, list[float]]) -> dict[int, list[float]]:
        return {size: [each / target.slots for each in measured] for size, measured in times.items()}

    draft = [each / target.slots for each in found.draft]
    return replace(found, calls=shared(found.calls), draft=draft, drafts=shared(found.drafts))


class BatchAsTarget(Target):
    """A target whose calls evaluate root and draft in every slot: the slots' own drafts, or another one in all."""

    def __init__(self, batch: BatchTarget) -> None:
        self.batch, self.slots, own = batch, range(batch.slots), batch.target
        self.drafts: dict[int, Draft] = {}  # the slots' own last ones
        self.vocab_size, self.context_length, self.end_tokens = own.vocab_size, own.context_length, own.end_tokens
        self.device, self.sampling, self.model = own.device, own.sampling, own.model
        self.capabilities = own.capabilities

    def start(self, text: TextStart) -> None:
        self.batch.reserve(text.capacity)
        for slot in self.slots:
            self.batch.start(slot, text)

    def verify(self, draft: Draft) -> Tensor:
        p = self.batch.verify(self.drafts if draft is self.drafts.get(0) else dict.fromkeys(self.slots, draft))[0]
        self.logits = self.batch.logits[0]
        return p

    def commit(self, path: Sequence[int], next_token: int) -> None:
        for slot in self.slots:
            self.batch.commit(slot, path, next_token)

    def discard(self) -> None:
        for slot in self.slots:
            self.batch.discard(slot)

    def score(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        return self.batch.target.score(prompt, text)


class _BatchAsDrafter(Drafter):
    """A draft is made for every slot of `whole`; what is returned is that of the first."""

    def __init__(self, batch: BatchDrafter, whole: BatchAsTarget) -> None:
        self._batch, self._whole, self.capabilities = batch, whole, batch.texts[0].capabilities

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self._batch.reserve(text.capacity)
        for slot in self._whole.slots:
            self._batch.texts[slot].start(replace(text, in_step=False), self._whole.batch.states.get(slot))

    def draft(self, structure: Structure) -> Draft:
        self._whole.drafts = self._batch.draft(dict.fromkeys(self._whole.slots, structure))
        return self._whole.drafts[0]

    def observe(self, draft: Draft, logits: Tensor) -> None:
        for slot, own in self._whole.drafts.items():
            self._batch.texts[slot].observe(own, self._whole.batch.logits[slot])
