"""Target and drafter for several sequences at once: one call evaluates the root and the draft of each, at its own
length; any drafter works, because each slot may have an ordinary one, which shares weights and tables with the others.
A batch with the same text in every slot is shown as one target and one drafter, to time its calls and drafts.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from specdec.drafters.base import BatchDrafter, Drafter
from specdec.errors import NumericsError, UsageError
from specdec.models.decoder import CachedModel
from specdec.models.memory import available_bytes
from specdec.models.ragged_decoder import RaggedDecoder
from specdec.records import Draft, TextStart
from specdec.sampling import checked_probabilities
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.targets.causal import Causal
from specdec.targets.table import Table


class BatchTarget:
    """The model whose law is decoded, for several texts. A slot holds one text at a time, at its own length; p of a
    text does not depend on the slot, nor on the other texts. Here texts are evaluated one after another, by a target
    for each slot; `CausalBatch` evaluates them in one call.

    Attributes:
        target: whose law it is.
        slots: texts that there is room for.
        texts: by slot, the target of its text; empty where all are evaluated in one call.
        states: by slot, hidden states as `Target.states` has them after `start` and `commit`; empty where nothing asked
            for any.
        logits: by slot, logits [N+1, V] as `Target.logits` has them after `verify`.
    """

    def __init__(self, target: Target, slots: int, texts: Sequence[Target] = ()) -> None:
        self.target, self.slots, self.texts = target, slots, texts
        self.states: dict[int, Tensor] = {}
        self.logits: dict[int, Tensor] = {}

    def reserve(self, capacity: int) -> None:
        """Make room for texts of `capacity`, the largest that `start` will be given, unless there is; those that were
        there are forgotten. To be called before `start`. UsageError: there is less memory.
        """

    def start(self, slot: int, text: TextStart) -> None:
        """Begin a new text in a slot and prefill all of its prompt but the last token, the root of round 1."""
        self.texts[slot].start(text)
        self._keep_states(slot)

    def verify(self, drafts: Mapping[int, Draft]) -> dict[int, Tensor]:
        """Evaluate root and draft of each slot; return p [N+1, V] of each. NumericsError: see `Target.verify`."""
        p: dict[int, Tensor] = {}
        for slot, draft in drafts.items():
            p[slot] = self.texts[slot].verify(draft)
            logits = self.texts[slot].logits
            assert logits is not None
            self.logits[slot] = logits
        return p

    def commit(self, slot: int, path: Sequence[int], next_token: int) -> None:
        """Keep the root and the accepted nodes `path` of a text; `next_token` becomes its root."""
        self.texts[slot].commit(path, next_token)
        self._keep_states(slot)

    def _keep_states(self, slot: int) -> None:
        states = self.texts[slot].states
        assert states is not None
        self.states[slot] = states

    def discard(self, slot: int) -> None:
        """Forget the last `verify` of a text without committing: its root stays where it was."""
        self.texts[slot].discard()

    def release(self, slot: int) -> None:
        """Forget the text of a slot."""
        self.states.pop(slot, None)
        self.logits.pop(slot, None)

    @property
    def cache_bytes(self) -> int:
        """Size of the key-value cache of all slots; 0 where there is none."""
        return 0


def batch_target(target: Target, slots: int) -> BatchTarget:
    """Return the target for `slots` sequences at once; it leaves the target's own cache alone. Raises UsageError: a
    target, or a way of evaluating drafts, that takes one sequence at a time.
    """
    if isinstance(target, Table):
        return BatchTarget(target, slots, [copy.copy(target) for _ in range(slots)])  # there is no call to share
    instead = "measurement.batch_size=1"
    if not isinstance(target, Causal):
        why, instead = f"target {type(target).__name__} decodes one sequence at a time", f"target=causal, or {instead}"
    elif target.decoder.recurrent:
        why = f"layers of model {target.name} keep a state, which is brought back for one text at a time"
    elif "packed" not in target.capabilities.evaluations:
        why = (
            "a batch of sequences takes masks of its own, under which the logits of model "
            f"{target.name} differ from those of plain forward passes"
        )
    elif not target.decoder.probed.batch:
        differ = target.decoder.probed.differ("batch", "texts")
        why = f"where texts of different lengths are evaluated in one call of model {target.name}, {differ}"
    elif target.evaluation == "rows":
        why = "target.evaluation=rows evaluates the paths of one sequence in a batch of their own"
        instead = f"target.evaluation=packed, or {instead}"
    else:
        return CausalBatch(target, slots)
    raise UsageError(f"Bad value measurement.batch_size={slots}: {why}; use {instead}.")


class CausalBatch(BatchTarget):
    """A decoder-only transformers model. Its calls are eager, whatever `target.compile` says."""

    target: Causal

    def __init__(self, target: Causal, slots: int) -> None:
        super().__init__(target, slots)
        self.decoder = RaggedDecoder(target.decoder, slots)
        self._roots: dict[int, int] = {}

    def reserve(self, capacity: int) -> None:
        of_place = self.target.decoder.cache.nbytes() // self.target.decoder.cache.capacity
        asked, free = self.slots * (capacity + 1) * of_place, available_bytes(self.target.device)
        if free is not None and asked > free + self.cache_bytes:
            raise UsageError(
                f"Bad value measurement.batch_size={self.slots}: key-value caches of {self.slots} sequences of "
                f"{capacity:,} tokens take {asked:,} bytes, and {free:,} are free on {self.target.device}; lower it, "
                "or measurement.max_new_tokens."
            )
        self.decoder.reserve(capacity)

    def start(self, slot: int, text: TextStart) -> None:
        self._roots[slot] = self.decoder.start(slot, text.prompt)
        if (states := self.decoder.states.get(slot)) is not None:
            self.states[slot] = states

    def verify(self, drafts: Mapping[int, Draft]) -> dict[int, Tensor]:
        slots = list(drafts)
        device = self.target.device
        roots = torch.tensor([self._roots[slot] for slot in slots]).to(device, non_blocking=True)
        tokens = [
            torch.cat([root, drafts[slot].tokens]) if len(drafts[slot]) else root  # empty drafts stand on the host
            for root, slot in zip(roots.split(1), slots, strict=True)
        ]
        before = {slot: self.decoder.cache.lengths[slot] for slot in slots}
        found = self.decoder.forward(slots, tokens, [drafts[slot].tree for slot in slots])
        self.logits.update(zip(slots, found, strict=True))
        p, finite = checked_probabilities(torch.cat(found), self.target.sampling)
        if not finite:
            broken = next(slot for slot in slots if not torch.isfinite(self.logits[slot]).all())
            raise NumericsError(
                f"The target's logits are not finite after position {before[broken]} of a text in a batch of "
                f"{len(slots)}: the run stops here. Try target.dtype=float32, or check the model."
            )
        return dict(zip(slots, p.split([len(each) for each in tokens]), strict=True))

    def commit(self, slot: int, path: Sequence[int], next_token: int) -> None:
        self.decoder.commit(slot, path)
        self._roots[slot] = next_token
        states = self.decoder.states.get(slot)
        if states is not None:
            kept = torch.tensor([0, *(node + 1 for node in path)]).to(states.device, non_blocking=True)
            self.states[slot] = states.index_select(0, kept)

    def discard(self, slot: int) -> None:
        self.decoder.discard(slot)

    def release(self, slot: int) -> None:
        super().release(slot)
        self.decoder.release(slot)
        self._roots.pop(slot, None)

    @property
    def cache_bytes(self) -> int:
        return self.decoder.cache.nbytes()


def batch_drafter(drafter: Drafter, target: Target, slots: int) -> BatchDrafter:
    """Return a drafter of at most `slots` texts at once that drafts as `drafter` does, which was made for `target`: its
    own (`Drafter.batched`), or a copy for each slot. Copies share the target, weights, tables and tokenizers, none of
    which decoding changes.
    """
    if (own := drafter.batched(slots)) is not None:
        return own
    parts = [target, *vars(target).values()]
    shared = {id(each): each for each in [*parts, *_unchanged(drafter, set(map(id, parts)))]}
    return BatchDrafter([copy.deepcopy(drafter, dict(shared)) for _ in range(slots)])


def _unchanged(value: Any, seen: set[int]) -> Iterator[Any]:
    """Yield the parts of a drafter that decoding does not change: networks, tokenizers, and tables of numbers outside a
    decoder, whose cache is the text's own. `seen` are ids of objects that are not looked into again.
    """
    if id(value) in seen or value is None or isinstance(value, str | bytes | int | float | type):
        return
    seen.add(id(value))
    if isinstance(value, nn.Module | Tensor | np.ndarray) or hasattr(value, "convert_ids_to_tokens"):
        yield value
    elif isinstance(value, CachedModel):
        yield value.model
    elif isinstance(value, Mapping | list | tuple | set | frozenset):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _unchanged(each, seen)
    elif type(value).__module__.startswith("specdec."):
        for each in getattr(value, "__dict__", {}).values():
            yield from _unchanged(each, seen)


def as_one(target: BatchTarget, drafter: BatchDrafter) -> tuple[Target, Drafter]:
    """Return the batch as one target and one drafter, for what times calls and drafts in turn."""
    whole = BatchAsTarget(target)
    return whole, _BatchAsDrafter(drafter, whole)


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
