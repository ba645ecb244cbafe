"""An oracle with a known alpha: it makes the capped-geometric model true, so that any gap left is the engine's."""

import time
from collections.abc import Sequence
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from specdec.config import Named, Probability, typed
from specdec.drafters.base import Drafter, DrafterCapabilities, drafters
from specdec.drafters.small_model import SmallModel
from specdec.errors import UsageError
from specdec.models.random_weights import random_model
from specdec.records import EMPTY, Draft, TextStart, chain_draft
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.targets.base.model_target import ModelTarget


@typed
class OracleConfig(Named):
    alpha: Probability
    step_ms: Annotated[float, Field(ge=0.0)]
    forced: bool
    shape: dict[str, Any] | None


@drafters.register("oracle")
class Oracle(Drafter):
    """Proposes the recorded baseline text and corrupts a token with probability 1 - alpha.

    One coin for each position is drawn when the text starts, the same at every gamma; a corrupt token differs from the
    recorded one. Deterministic (q is a point mass). `step_ms` is an artificial cost per drafted token; with `shape` a
    model of random weights (see `random_model`) drafts beside the oracle, at its real cost, and its tokens are
    replaced. With `forced` the recorded tokens are committed whatever the target says (see `session.arm.Forced`): this
    is for timing in 16-bit arithmetic and says nothing about losslessness.
    """

    capabilities = DrafterCapabilities(fills=frozenset({"chain"}), needs_reference=True, replay="position")

    def __init__(self, config: OracleConfig, target: Target) -> None:
        self._config = config
        self._target = target
        self._proposals = torch.empty(0, dtype=torch.long)
        self._position = 0
        self._beside: SmallModel | None = None
        if config.shape is not None:
            if not isinstance(target, ModelTarget):
                raise UsageError(
                    "Bad value drafter.shape: a random model drafts for a transformers target; use drafter.shape=null."
                )
            how: dict[str, Any] = {"dtype": target.model.dtype, "device": target.device, "attention": "auto"}
            self._beside = SmallModel(random_model(config.shape, **how, key="drafter.shape"), target)

    def prepare(self, capacity: int, structure: Structure) -> None:
        if self._beside is not None:
            self._beside.prepare(capacity, structure)

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        if text.reference is None:
            raise ValueError("the oracle needs the recorded baseline text: TextStart.reference")
        size = self._target.vocab_size
        recorded = torch.tensor(list(text.reference), dtype=torch.long)
        corrupt = torch.rand(len(recorded), generator=text.generator) >= self._config.alpha
        # A shift by 1..V-1 is uniform over the other tokens and can never give the recorded one back.
        shift = torch.randint(1, size, (len(recorded),), generator=text.generator)
        self._proposals = torch.where(corrupt, (recorded + shift) % size, recorded).to(self._target.device)
        self._position = 0
        if self._beside is not None:
            self._beside.start(text)

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        self._position += len(tokens)
        if self._beside is not None:
            self._beside.commit(tokens)

    def draft(self, structure: Structure) -> Draft:
        tokens = self._proposals[self._position : self._position + structure.gamma]
        if len(tokens) == 0:
            return EMPTY
        if self._beside is not None:
            self._beside.draft(structure.clamped(len(tokens)))
            self._beside.take_for_drafted(tokens)
        if self._config.step_ms:
            # Sleeping is only as precise as the scheduler; a cost of computation is spent on the processor.
            end = time.perf_counter() + len(tokens) * self._config.step_ms / 1000
            while time.perf_counter() < end:
                pass
        return chain_draft(tokens, "oracle")
