"""Shows a batch as one target and one drafter: what times a call or a draft then times those of a whole batch."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from specdec.batching.batch_target import BatchTarget
from specdec.drafters.base import Drafter
from specdec.drafters.base.contract import BatchDrafter
from specdec.records import EMPTY, Draft, TextStart
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.timing.calls import Calibration


class EverySlot:
    """The same text in every slot of a batch, each slot with its own draft."""

    def __init__(self, target: BatchTarget, drafter: BatchDrafter) -> None:
        self.target, self.drafter = target, drafter
        self.slots = range(target.slots)
        self.drafts: dict[int, Draft] = dict.fromkeys(self.slots, EMPTY)  # the last ones

    def calibrate(self, measure: Callable[[Target, Drafter], Calibration], drafter: Drafter) -> Calibration:
        """Return what `measure` finds of calls on the whole batch, shared evenly by its sequences. It is given the
        batch as a target, and as a drafter with the capabilities of `drafter`.
        """
        found = measure(BatchAsTarget(self), _BatchAsDrafter(self, drafter))

        def shared(times: dict[int, list[float]]) -> dict[int, list[float]]:
            return {size: [each / len(self.slots) for each in measured] for size, measured in times.items()}

        draft = [each / len(self.slots) for each in found.draft]
        return replace(found, calls=shared(found.calls), draft=draft, drafts=shared(found.drafts))


class BatchAsTarget(Target):
    """A target whose calls evaluate root and draft in every slot: the slots' own drafts, or another one in all."""

    def __init__(self, batch: EverySlot) -> None:
        self._batch, own = batch, batch.target.target
        self.vocab_size, self.context_length, self.end_tokens = own.vocab_size, own.context_length, own.end_tokens
        self.device, self.sampling, self.model = own.device, own.sampling, own.model
        self.capabilities = own.capabilities

    def start(self, text: TextStart) -> None:
        self._batch.target.reserve(text.capacity)
        for slot in self._batch.slots:
            self._batch.target.start(slot, text)

    def verify(self, draft: Draft) -> Tensor:
        drafts = self._batch.drafts
        if draft is not drafts[0]:
            drafts = dict.fromkeys(self._batch.slots, draft)
        p = self._batch.target.verify(drafts)[0]
        self.logits = self._batch.target.logits[0]
        return p

    def commit(self, path: Sequence[int], next_token: int) -> None:
        for slot in self._batch.slots:
            self._batch.target.commit(slot, path, next_token)

    def discard(self) -> None:
        for slot in self._batch.slots:
            self._batch.target.discard(slot)

    def score(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        return self._batch.target.target.score(prompt, text)


class _BatchAsDrafter(Drafter):
    """A draft is made for every slot; what is returned is that of the first."""

    def __init__(self, batch: EverySlot, drafter: Drafter) -> None:
        self._batch, self.capabilities = batch, drafter.capabilities

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self._batch.drafter.reserve(text.capacity)
        for slot in self._batch.slots:
            own = replace(text, in_step=False)
            self._batch.drafter.start(slot, own, self._batch.target.states.get(slot))

    def draft(self, structure: Structure) -> Draft:
        self._batch.drafts = self._batch.drafter.draft(dict.fromkeys(self._batch.slots, structure))
        return self._batch.drafts[0]

    def observe(self, draft: Draft, logits: Tensor) -> None:
        for slot, own in self._batch.drafts.items():
            self._batch.drafter.observe(slot, own, self._batch.target.logits[slot])
