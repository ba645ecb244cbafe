"""The part that drafters which look tokens up share: their proposals are plain numbers, and point masses."""

from abc import abstractmethod

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

    def draft(self, structure: Structure) -> Draft:
        tokens, tree, source = self.propose(structure)
        return Draft(torch.tensor(tokens, device=self._device), tree, source=source) if tokens else EMPTY
