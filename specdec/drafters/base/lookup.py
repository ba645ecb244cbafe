"""The part that drafters which look tokens up share: their proposals are plain numbers, and point masses."""

from abc import abstractmethod
from collections.abc import Sequence

import torch

from specdec.drafters.base.contract import Drafter
from specdec.records import EMPTY, Draft
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.tree_building.lookup_filling import Proposal
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

        Only drafters whose rounds do not depend on earlier ones can do so without drafting. Afterwards the drafter has
        no text: call `start` next.

        Args:
            limit: of the text, at least its length; nothing is offered beyond the token before it.
        """
        return [None] * len(structures)

    def draft(self, structure: Structure) -> Draft:
        tokens, tree, source = self.propose(structure)
        return Draft(torch.tensor(tokens, device=self._device), tree, source=source) if tokens else EMPTY
