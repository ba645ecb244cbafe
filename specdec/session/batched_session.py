"""A measured session whose methods decode several prompts at once (`measurement.batch_size`).

Prompts are decoded in groups, each group by every method in turn; then each prompt is kept as any session keeps one.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from specdec.batching.batch_parts import BatchTarget, as_one, batch_drafter, batch_target
from specdec.batching.decode_batch import BatchDecoded, decode_batch
from specdec.drafters.base import BatchDrafter, Drafter
from specdec.errors import NumericsError
from specdec.prompts import Prompt
from specdec.records import Generation, Request
from specdec.session.arm import Arm
from specdec.session.session import Session
from specdec.targets import Target
from specdec.timing.calls import Calibration

FILLS = 4  # prompts of a group for each slot: most steps then have a full batch, as in a server with a queue


class BatchedSession(Session):
    """A session that decodes `measurement.batch_size` prompts at once; UsageError without memory for the caches."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._slots = self._measurement.batch_size
        self.group = FILLS * self._slots
        self._targets: dict[int, BatchTarget] = {}  # by the id of the target of one sequence
        self._drafters: dict[int, BatchDrafter] = {}
        self._decoded: dict[tuple[int, str], dict[int, Generation]] = {}  # repeat and prompt -> arm -> its output
        self._failed: NumericsError | None = None
        self._first = 0  # place of the first prompt of the group at hand
        longest = len(self.parts.longest_prompt.tokens) + self.parts.limit
        for arm in self.parts.arms:
            target, _ = self._batched(arm)
            target.reserve(longest + max(arm.target.room(each.structure.tree) for each in self.parts.arms))
        self._cache = self._targets[id(self._target)]

    def _batched(self, arm: Arm) -> tuple[BatchTarget, BatchDrafter]:
        """Return target and drafter of an arm for several sequences; arms that share one share the other."""
        if id(arm.target) not in self._targets:
            self._targets[id(arm.target)] = batch_target(arm.target, self._slots)
        if id(arm.drafter) not in self._drafters:
            self._drafters[id(arm.drafter)] = batch_drafter(arm.drafter, arm.target, self._slots)
        return self._targets[id(arm.target)], self._drafters[id(arm.drafter)]

    def _together(self, arm: Arm, requests: Sequence[Request]) -> BatchDecoded:
        return decode_batch(*self._batched(arm), arm.verifier, arm.structure, requests, self.clock)

    def warm_up(self, prompt: Prompt, tokens: int, done: Callable[[int], None] = lambda _: None) -> None:
        """Decode a little with every method, in full batches of one prompt; untimed."""
        reference: tuple[int, ...] | None = None
        for arm in self.parts.arms:
            requests = [self._asked(arm, prompt, 0, reference, tokens) for _ in range(self._slots)]
            output = self._together(arm, requests).generations[0].tokens
            reference = reference or output  # every method decodes
            done(1)

    def calibrated(self, measure: Callable[[Target, Drafter], Calibration]) -> Calibration:
        """Return the times of calls on full batches of one text, and of their drafts, divided by the sequences."""
        found = measure(*as_one(*self._batched(self.parts.primary)))

        def shared(times: dict[int, list[float]]) -> dict[int, list[float]]:
            return {size: [each / self._slots for each in measured] for size, measured in times.items()}

        draft = [each / self._slots for each in found.draft]
        return replace(found, calls=shared(found.calls), draft=draft, drafts=shared(found.drafts))

    def decode_ahead(self, prompts: Sequence[Prompt], repeat: int, place: int) -> None:
        """Decode a group of prompts by every method, so that `run_prompt` finds what it asks for."""
        if not prompts:
            return  # an earlier sitting of the run has decoded all of them
        self._first = place
        order = self._order(random.Random(f"{self._seed}/{repeat}/{prompts[0].id}"), self._first)
        self._decoded = {(repeat, prompt.id): {} for prompt in prompts}
        references: list[tuple[int, ...] | None] = [None] * len(prompts)
        for arm in order:
            texts = zip(prompts, references, strict=True)
            requests = [self._asked(arm, prompt, repeat, reference) for prompt, reference in texts]
            try:
                found = dict(enumerate(self._together(arm, requests).generations))
            except NumericsError as error:
                self._failed, found = error, error.partials
            for place, prompt in enumerate(prompts):
                if place in found:
                    self._decoded[repeat, prompt.id][id(arm)] = found[place]
            if self._failed is not None:
                return  # `run_prompt` keeps what there is of the first prompt, and raises
            if arm is self.parts.baseline:
                references = [found[place].tokens for place in range(len(prompts))]

    def _order(self, dice: random.Random, place: int) -> list[Arm]:
        return super()._order(dice, self._first)  # a group has one order

    def _decode(
        self, arm: Arm, prompt: Prompt, repeat: int, reference: tuple[int, ...] | None, limit: int | None = None
    ) -> Generation:
        found = self._decoded[repeat, prompt.id].get(id(arm))
        if self._failed is not None and (found is None or found.finish == "failed"):
            self._failed.partial = found
            raise self._failed
        assert found is not None
        return found

    def _remember(self, prompt: Prompt, output: Sequence[int]) -> None:
        super()._remember(prompt, output)
        for drafter in self._drafters.values():
            for own in drafter.texts:
                own.remember(prompt.tokens, output)
