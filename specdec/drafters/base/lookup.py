"""The part that drafters which look tokens up share: their proposals are plain numbers, and point masses."""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from specdec.drafters.base.contract import Drafter
from specdec.records import EMPTY, Draft
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.tree_building.lookup_filling import Proposal


class Lookup(Drafter):
    """Drafts deterministically, with a point mass on every node, from tables and indexes on the host."""

    def __init__(self, target: Target) -> None:
        self._device = target.device

    @abstractmethod
    def propose(self, structure: Structure) -> Proposal:
        """Return at most what `structure` asks for; `NOTHING` where there is nothing to propose."""

    def agreed_lengths(self, prompt: Sequence[int], text: Sequence[int]) -> np.ndarray | None:
        """Return how many tokens of a long chain would be those of the text, for chains from each position [len(text)].

        Only drafters that know it without drafting, and that propose as many tokens as they are asked for; None means
        that a replay has to draft.
        """
        return None

    def draft(self, structure: Structure) -> Draft:
        tokens, tree, source = self.propose(structure)
        return Draft(torch.tensor(tokens, device=self._device), tree, source=source) if tokens else EMPTY
