"""The contract of a drafter."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from specdec.records import Draft
from specdec.registry import Registry
from specdec.structures.base import Structure


class Drafter(ABC):
    """Proposes a token tree in each round. Constructed once as `cls(config, target=target)`, then reused per prompt.

    Class attributes:
        fills: names of the structures that it can fill.
        lossless: false only for a drafter that makes the output depart from the target's by declaration.
        needs_reference: reads the recorded baseline text of the same prompt (greedy runs only).
        reads_states: reads the target's hidden states; it calls `Target.keep_states` when it is made.
        reports_confidence: ends a draft where the structure's `threshold` asks for it.
        replay: how the target's own text gives expected rounds without decoding (DESIGN 3): "position" when a
            proposal depends only on the text before it, "copying" when it must be drafted again from each round's
            start (exact under greedy only), None when neither holds.

    Attributes:
        vocab_size: tokens that it was made for; None when it takes whatever the target has. A run with a target of
            another size is refused.
        deepest: levels that it can draft at most; None where any. A run refuses a deeper structure.
    """

    fills: ClassVar[frozenset[str]]
    lossless: ClassVar[bool] = True
    needs_reference: ClassVar[bool] = False
    reads_states: ClassVar[bool] = False
    reports_confidence: ClassVar[bool] = False
    # A drafter whose configuration decides it sets its own; the class then says what its YAML gives.
    replay: Literal["position", "copying"] | None = None

    vocab_size: int | None = None
    deepest: int | None = None

    def prepare(self, capacity: int, structure: Structure) -> None:
        """Compile what can be compiled where the target does (`Target.compilation`), before anything is timed.

        Args:
            capacity: the largest that `start` will be given.
            structure: the primary one; drafts of others come too.
        """

    def start(
        self,
        prompt: Sequence[int],
        capacity: int,
        generator: torch.Generator | None = None,
        reference: Sequence[int] | None = None,
    ) -> None:
        """Begin a new text.

        Args:
            prompt: all prompt tokens; the last is the root of round 1.
            capacity: rows that prompt, output and the largest draft need together.
            generator: the source of all randomness of this text's drafts.
            reference: the baseline's tokens after the prompt, for drafters that need them.
        """

    @abstractmethod
    def draft(self, structure: Structure) -> Draft:
        """Propose at most what `structure` asks for; an empty draft where there is nothing to propose."""

    def commit(self, tokens: Sequence[int]) -> None:
        """Take note of the tokens appended to the text in this round."""

    def read(self, states: Tensor) -> None:
        """Take note of the target's hidden states [M, D], for a drafter that declares `reads_states`: after `start` of
        all of the prompt but its last token, after every `commit` of the round's root and accepted nodes.
        """

    def laws(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor | None:
        """q before every token of `text`, in one teacher-forced pass: [len(text), V].

        Only for drafters whose replay is "position" and that always propose; point masses are one-hot rows. None
        means that the pass has to draft token by token. Leaves the drafter without a text: call `start` next.
        """
        return None

    def describe(self) -> dict[str, Any]:
        """What to record about a model that drafts: hash, dtype, attention kind, parameters."""
        return {}

    @property
    def flops_per_token(self) -> float:
        """Floating-point operations of one drafted token; 0 for drafters that look things up."""
        return 0.0


drafters: Registry[Drafter] = Registry("drafters", "drafter")
