"""An explicit Markov law over a few tokens: for exact tests, and for decoding without any model."""

import hashlib
from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from specdec.config import AtLeastOne, Named, typed
from specdec.errors import UsageError
from specdec.records import Draft, TextStart
from specdec.sampling import SamplingConfig, probabilities
from specdec.structures.base import EVERY_STRUCTURE
from specdec.targets.base import HiddenStates, Target, TargetCapabilities, targets


@typed
class TableConfig(Named):
    law: Annotated[list[list[float]], Field(min_length=2)]
    end_token: int | None
    context_length: AtLeastOne


@targets.register("table")
class Table(Target, HiddenStates):
    """p(next | last) is line `last` of a square stochastic matrix, standardised like any model's logits. The state of a
    table is its last token, one-hot; the output layer gives the logits of that token's line.
    """

    capabilities = TargetCapabilities(structures=EVERY_STRUCTURE)
    layers = 0
    kept = (0,)

    def __init__(self, config: TableConfig, sampling: SamplingConfig) -> None:
        size = len(config.law)
        for last, line in enumerate(config.law):
            if len(line) != size or min(line) < 0 or abs(sum(line) - 1) > 1e-9:
                raise UsageError(
                    f"Bad value target.law[{last}]={line}: it should be {size} probabilities that add up to 1."
                )
        self.vocab_size = size
        self.context_length = config.context_length
        self.end_tokens = frozenset() if config.end_token is None else frozenset({config.end_token})
        self.device = torch.device("cpu")
        self._logits = torch.tensor(config.law, dtype=torch.float64).log()
        self.standardise(sampling)
        self._tokens = torch.zeros(1, dtype=torch.long)  # root and draft

    def start(self, text: TextStart) -> None:
        self._tokens = torch.tensor([text.prompt[-1]])
        self.states = self.embedding[torch.tensor(text.prompt[:-1], dtype=torch.long)]

    def verify(self, draft: Draft) -> Tensor:
        self._tokens = torch.cat([self._tokens[:1], draft.tokens])
        self.logits = self._logits[self._tokens]
        return self._p[self._tokens]

    def commit(self, path: Sequence[int], next_token: int) -> None:
        self.states = self.embedding[self._tokens[[0, *(node + 1 for node in path)]]]
        self._tokens = torch.tensor([next_token])

    def standardise(self, sampling: SamplingConfig) -> None:
        super().standardise(sampling)
        self._p = probabilities(self._logits, sampling)

    def discard(self) -> None:
        pass  # verifying changed nothing

    def score(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        return self._logits[torch.tensor([prompt[-1], *text])]

    @property
    def embedding(self) -> Tensor:
        return torch.eye(len(self._logits), dtype=torch.float64)

    @property
    def output_layer(self) -> Tensor:
        return self._logits.clamp_min(torch.finfo(torch.float64).min).T

    @property
    def identity(self) -> str:
        return hashlib.sha256(self._logits.numpy().tobytes()).hexdigest()

    def _keep_also(self, offsets: tuple[int, ...]) -> None:
        for offset in offsets:
            if offset:
                raise UsageError(f"Bad value heads.offset={offset}: a table has no layers; use 0.")

    def sequence(self, tokens: Tensor, *offsets: int) -> tuple[Tensor, Tensor]:
        self._keep_also(offsets)
        return torch.cat([self.embedding[tokens]] * len(offsets), -1), self._logits[tokens]
