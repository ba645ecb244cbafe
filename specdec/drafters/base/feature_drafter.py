"""The part that drafters over the target's own states share: the rows of a text, and chains drafted row by row."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specdec.drafters.base.network_drafter import Drafts, NetworkDrafter
from specdec.records import Draft, Source, TextStart, chain_tree
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.tree_building.siblings import Siblings


class FeatureDrafter(NetworkDrafter):
    """Drafts with a network whose rows of the text are made of the target's features and tokens: those of a round are
    noted when it is committed, and read, in one pass, when the next draft is asked for. Nothing is offered before the
    first feature: after a prompt of one token, and where nobody gives the target's states.
    """

    def __init__(
        self,
        target: Target,
        network: Any,
        offsets: Sequence[int],
        drafts: Drafts,
        siblings: Siblings = "without_replacement",
    ) -> None:
        """
        Args:
            offsets: the target's layers that are read (`HiddenStates.keep`).
        Raises:
            UsageError: a target without hidden states, or without one of these layers.
        """
        super().__init__(target, drafts, siblings)
        self._kept = target.hidden.keep(*offsets)
        self.network = network
        self._dtype = next(network.parameters()).dtype

    @abstractmethod
    def new_rows(self) -> Any:
        """Return the rows of a new text: an object with `append(tokens [S], features [S, F])` and a `length`."""

    def widened(self, logits: Tensor) -> Tensor:
        """Return the network's logits [..., W] over the target's tokens [..., V]."""
        return logits

    def _begin(self, generator: torch.Generator | None) -> None:
        super()._begin(generator)
        self._rows: Any = self.new_rows()
        self._tokens: list[int] = []  # committed tokens that have no row yet
        self._features: list[Tensor] = []  # of the positions before them

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self._begin(text.generator)
        self._note(text.prompt[1:], states)
        self.read()

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        super().commit(tokens)
        self._note(tokens, states)

    def _note(self, tokens: Sequence[int], states: Tensor | None) -> None:
        """Keep tokens with the features of the positions before them. Without states a text has no more drafts."""
        if states is None:
            self._rows = None
        elif len(states):
            self._tokens += tokens[: len(states)]
            self._features.append(self._kept(states)[: len(tokens)])

    def read(self) -> Any:
        """Make the rows of all noted tokens; return None where there is nothing to draft from."""
        if self._rows is None:
            return None
        if self._tokens:
            tokens = torch.tensor(self._tokens).to(self._device, non_blocking=True)
            self._rows.append(tokens, torch.cat(self._features).to(self._dtype))
            self._tokens, self._features = [], []
        return self._rows if self._rows.length else None

    def chain(self, rows: Any, structure: Structure, strategy: str) -> Draft:
        """Draft a chain by rows whose `first` are the logits [1, W] after the root, and whose `next(token [1])` gives
        those after one more.
        """
        chain = self.new_chain(structure.gamma, structure.threshold)
        tokens, _, q = self.drafted(chain, self.widened(rows.first), lambda token: self.widened(rows.next(token)))
        return self.checked(Draft(tokens, chain_tree(len(tokens)), q, (Source(strategy, 0),) * len(tokens)))
