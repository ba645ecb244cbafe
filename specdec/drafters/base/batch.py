"""The contract of a drafter for several sequences at once."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from torch import Tensor

from specdec.records import Draft, TextStart
from specdec.structures.base import Structure


class BatchDrafter(ABC):
    """Proposes a token tree for each of several texts in each step. A slot holds one text at a time.

    What it drafts for a text depends on that text and its own generator alone: neither on the slot nor on the other
    texts. Texts have begun with `TextStart.in_step` False, because none may read the target's cache.

    Attributes:
        slots: texts that there is room for.
        reads_logits: it learns from the target's logits over each draft (`observe`).
    """

    slots: int
    reads_logits: bool = False

    def reserve(self, capacity: int) -> None:
        """Make room for texts; those that were there are forgotten. Called before the first of several starts.

        Args:
            capacity: the largest that `start` will be given.
        """

    @abstractmethod
    def start(self, slot: int, text: TextStart, states: Tensor | None = None) -> None:
        """Begin a new text in a slot.

        Args:
            states: hidden states [S-1, D] as `Drafter.start` is given them.
        """

    @abstractmethod
    def draft(self, structures: Mapping[int, Structure]) -> dict[int, Draft]:
        """Propose for each slot at most what its structure asks for; a draft may be empty."""

    @abstractmethod
    def commit(self, slot: int, tokens: Sequence[int], states: Tensor | None = None) -> None:
        """Take note of the tokens appended to a text in this step (see `Drafter.commit`)."""

    def observe(self, slot: int, draft: Draft, logits: Tensor) -> None:
        """Take note of what the target said of a draft (see `Drafter.observe`); called before `commit`, only where
        `reads_logits`.
        """

    @abstractmethod
    def release(self, slot: int) -> None:
        """Forget the text of a slot."""

    def remember(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Take note of a finished text, for drafts of texts that are begun later (see `Drafter.remember`)."""
