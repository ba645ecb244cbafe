"""The contract of an acceptance rule."""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from specdec.records import Acceptance, Draft
from specdec.registry import Registry


class Verifier(ABC):
    """Decides how much of a draft becomes text. Sees probabilities only, never a temperature or logits.

    Class attributes:
        lossless: the output law is exactly the target's; such a rule is under test for every structure it handles.
        handles: names of structures.
        greedy_only: right only where p is one-hot; a run with a temperature is refused.
    """

    lossless: ClassVar[bool]
    handles: ClassVar[frozenset[str]]
    greedy_only: ClassVar[bool] = False

    @abstractmethod
    def accept(self, draft: Draft, p: Tensor, generator: torch.Generator | None) -> Acceptance:
        """Choose a path and the token after it.

        Args:
            draft: N nodes; N may be 0, then the next token is drawn from p[0].
            p: [N+1, V] the target's law after the root (row 0) and after each node.
            generator: the source of all randomness of the decision.
        """


verifiers: Registry[Verifier] = Registry("verifiers", "verifier")
