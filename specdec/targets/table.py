"""An explicit Markov law over a handful of tokens: exact tests, and decoding without any model."""

import hashlib
from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from specdec.config import AtLeastOne, typed
from specdec.errors import UsageError
from specdec.records import Draft
from specdec.sampling import SamplingConfig, probabilities
from specdec.targets.base import Target, targets


@typed
class TableConfig:
    name: Literal["table"]
    law: Annotated[list[list[float]], Field(min_length=2)]
    end_token: int | None
    context_length: AtLeastOne


@targets.register("table")
class Table(Target):
    """p(next | last) is row `last` of a square stochastic matrix; standardised like any model's logits."""

    structures = frozenset({"chain", "rows", "tree", "dynamic"})

    def __init__(self, config: TableConfig, sampling: SamplingConfig) -> None:
        size = len(config.law)
        for last, row in enumerate(config.law):
            if len(row) != size or min(row) < 0 or abs(sum(row) - 1) > 1e-9:
                raise UsageError(
                    f"Bad value target.law[{last}]={row}: it should be {size} probabilities that add up to 1."
                )
        self.vocab_size = size
        self.context_length = config.context_length
        self.end_tokens = frozenset() if config.end_token is None else frozenset({config.end_token})
        self.device = torch.device("cpu")
        self._logits = torch.tensor(config.law, dtype=torch.float64).log()
        self.standardise(sampling)
        self._rows = torch.zeros(1, dtype=torch.long)  # of the table: root and draft

    def start(self, prompt: Sequence[int], capacity: int, branches: int = 1) -> None:
        self._rows = torch.tensor([prompt[-1]])
        self.states = self.embedding[torch.tensor(prompt[:-1], dtype=torch.long)]

    def verify(self, draft: Draft) -> Tensor:
        self._rows = torch.cat([self._rows[:1], draft.tokens])
        return self._p[self._rows]

    def commit(self, path: Sequence[int], next_token: int) -> None:
        self.states = self.embedding[self._rows[[0, *(node + 1 for node in path)]]]
        self._rows = torch.tensor([next_token])

    def standardise(self, sampling: SamplingConfig) -> None:
        super().standardise(sampling)
        self._p = probabilities(self._logits, sampling)

    def discard(self) -> None:
        pass  # verifying changes nothing here

    def keep_states(self, offset: int) -> None:
        if offset:
            raise UsageError(f"Bad value heads.offset={offset}: a table has no layers; use 0.")

    @property
    def embedding(self) -> Tensor:
        """One-hot: the state of a table is its last token."""
        return torch.eye(self.vocab_size, dtype=torch.float64)

    @property
    def output_layer(self) -> Tensor:
        return self._logits.clamp_min(torch.finfo(torch.float64).min).T

    @property
    def identity(self) -> str:
        return hashlib.sha256(self._logits.numpy().tobytes()).hexdigest()

    def score(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor:
        return self._logits[torch.tensor([prompt[-1], *text])]
