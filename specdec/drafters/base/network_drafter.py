"""The part that drafters with a network share: how tokens are chosen by its laws, and the check of q."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from specdec.drafters.base.contract import Drafter
from specdec.errors import NumericsError
from specdec.records import Draft
from specdec.sampling import all_finite, generator_on, probabilities
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.tree_building.siblings import How, Siblings

Drafts = Literal["sampled", "greedy"]


class NetworkDrafter(Drafter):
    """Drafts by the laws of a network. Tokens are drawn from them, standardised by the target's own sampling; under a
    greedy target, or with `drafts=greedy`, and in a dynamic tree, they are the most likely ones, point masses.

    Class attributes:
        not_finite: the sentence of the error that ends a run whose q is not finite.

    Attributes:
        sampling: makes laws of logits: the target's, or the greedy one.
    """

    not_finite: ClassVar[str] = (
        "The drafter's logits are not finite: the run stops here. Try drafter.dtype=float32, or check drafter.model."
    )

    def __init__(self, target: Target, drafts: Drafts, siblings: Siblings) -> None:
        self._greedy = drafts == "greedy" or target.sampling.greedy
        self.sampling = replace(target.sampling, temperature=0.0) if self._greedy else target.sampling
        self._siblings: Siblings = siblings
        self._device = target.device

    def _begin(self, generator: torch.Generator | None) -> None:
        """Forget the text; the next one draws with this generator."""
        self.generator = generator_on(generator, self._device)
        self._finite: Tensor | None = None

    def how(self, structure: Structure) -> How:
        """Return how the children of a node are chosen in drafts of this structure."""
        return "ranked" if self._greedy or structure.beam is not None else self._siblings

    def standardise(self, structure: Structure) -> Callable[[Tensor], Tensor]:
        """Return what turns logits into laws for such drafts, or leaves them as scores where children are ranked."""
        if self.how(structure) == "ranked":
            return lambda logits: logits
        return lambda logits: probabilities(logits, self.sampling)

    def chances_of(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Return q [...] of tokens [...] in chains, float64, by logits [..., V]."""
        if self._greedy:
            return (logits.argmax(-1) == tokens).double()
        return probabilities(logits, self.sampling).gather(-1, tokens.unsqueeze(-1)).squeeze(-1).double()

    def checked(self, draft: Draft) -> Draft:
        """Have the q of the round's draft looked at, for `commit` to read."""
        self._finite = all_finite(draft.q)
        return draft

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        """See `Drafter.commit`.

        Raises:
            NumericsError: the q of the round's draft was not finite. It is seen only here, because by now the host
                has waited for the device.
        """
        if self._finite is not None and not self._finite:
            raise NumericsError(self.not_finite)
        self._finite = None
