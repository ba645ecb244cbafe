"""The part that drafters which look tokens up share: their proposals are plain numbers, and point masses."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from specdec.drafters.base.contract import Drafter, DrafterCapabilities
from specdec.errors import UsageError
from specdec.records import EMPTY, Draft, Source, TextStart
from specdec.sampling import one_hot
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.tree_building.lookup_filling import NOTHING, Proposal, filled, merged
from specdec.tree_building.possible_rounds import PossibleRounds


class Lookup(Drafter):
    """Drafts deterministically, with a point mass on every node, from tables and indexes on the host."""

    def __init__(self, target: Target) -> None:
        self._device = target.device

    @abstractmethod
    def propose(self, structure: Structure) -> Proposal:
        """Return at most what `structure` asks for; `NOTHING` where there is nothing to propose."""

    def possible_rounds(
        self, prompt: Sequence[int], text: Sequence[int], limit: int, structures: Sequence[Structure]
    ) -> Sequence[PossibleRounds | None]:
        """Return, for each structure, the round that would begin at each position of a text that is known to its end:
        what `propose` says there, compared with the text. None means that a replay has to draft.

        Only drafters whose rounds do not depend on earlier ones can do so without drafting. Nothing is offered beyond
        the token before the text's `limit`. Afterwards the drafter has no text: call `start` next.
        """
        return [None] * len(structures)

    def draft(self, structure: Structure) -> Draft:
        tokens, tree, source = self.propose(structure)
        if not tokens:
            return EMPTY
        # Made on the host and sent: where it is made on a GPU, the host waits for it.
        return Draft(torch.tensor(tokens).to(self._device, non_blocking=True), tree, source=source)


class TokenLookup(Lookup):
    """Proposes by a fixed ranking of the tokens that may follow each token; only the last token of a text counts. A row
    goes on as its first two tokens say, where they say it, and then with the best token after its last one.
    """

    capabilities = DrafterCapabilities(fills=frozenset({"chain", "rows", "tree"}), replay="position")
    strategy: ClassVar[str]

    def __init__(
        self, target: Target, k: int, described: Mapping[str, Any], first: np.ndarray, rest: np.ndarray
    ) -> None:
        """Make one of the k tokens that are ranked after each, `first` [V, k], best first, all of a vocabulary that has
        fewer; and of the tokens `rest` [V, n, width - 1] behind the first n of them.
        """
        super().__init__(target)
        self._described, self._k, self._first, self._rest = described, k, first, rest
        self._next: list[int] = first[:, 0].tolist()  # the best token after each
        self._size = target.vocab_size
        self.capabilities = replace(self.capabilities, vocab_size=self._size)
        self.last = 0  # token of the text

    def prepare(self, capacity: int, structure: Structure) -> None:
        check_siblings(structure, self._k)

    def ranked(self, token: int, count: int) -> list[int]:
        """Return the first `count` tokens of the ranking after `token`, best first; fewer where no more are known."""
        return self._first[token, :count].tolist()

    def rows(self, token: int, k: int, w: int) -> list[tuple[int, ...]]:
        """Return at most `k` continuations of `token`, of `w` tokens each: row j begins with the token of rank j. Fewer
        where no more are known.
        """
        rows, known = [], self._rest[token, :k, : w - 1].tolist()
        for rank, first in enumerate(self.ranked(token, k)):
            row = [first, *(known[rank] if rank < len(known) else ())]
            while len(row) < w:
                row.append(self._next[row[-1]])
            rows.append(tuple(row))
        return rows

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self.last = text.prompt[-1]

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        self.last = tokens[-1]

    def propose(self, structure: Structure) -> Proposal:
        """Propose chains and rows as `rows` gives them. In a tree, the child of rank j of a token x is the token of
        rank j after x; where there is none, the node is left out with all nodes below it.
        """
        if structure.gamma == 0:
            return NOTHING
        if structure.rows is None:
            return filled(
                structure.tree,
                self.last,
                lambda token, count: [(child, self.strategy, child) for child in self.ranked(token, count)],
            )
        rows = self.rows(self.last, structure.rows, structure.gamma)
        return merged((row, Source(self.strategy, rank)) for rank, row in enumerate(rows))

    def laws(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor | None:
        if self.capabilities.replay != "position":
            return None
        first = [self.ranked(token, 1)[0] for token in (prompt[-1], *text[:-1])]
        return one_hot(torch.tensor(first[: len(text)], dtype=torch.long, device=self._device), self._size)

    def describe(self) -> dict[str, Any]:
        return dict(self._described)


def check_siblings(structure: Structure, k: int) -> None:
    """Raises UsageError: the structure has more siblings than k tokens, so that some places would stay empty."""
    widest = max(map(len, structure.tree.children))
    if widest > k:
        raise UsageError(
            f"Bad value drafter.k={k}: structure={structure.name} asks for {widest} tokens to follow one; raise "
            "drafter.k to as many."
        )
