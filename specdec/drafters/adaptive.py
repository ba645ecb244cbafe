"""Another drafter's chain, ended early where the drafts look likely to fail, or sized by how the last ones did."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from pydantic import field_validator
from torch import Tensor

from specdec.config import AtLeastOne, Probability, typed
from specdec.drafters.base import Drafter, drafters
from specdec.drafters.base.nested import named_below
from specdec.errors import UsageError
from specdec.records import Draft
from specdec.structures.base import Structure
from specdec.structures.chain import Chain

if TYPE_CHECKING:
    from specdec.targets.base import Target


@typed
class AdaptiveConfig:
    name: Literal["adaptive"]
    of: dict[str, Any]
    rule: Literal["confidence", "heuristic"]
    threshold: Probability
    length: AtLeastOne

    @field_validator("of")
    @classmethod
    def _of_is_a_drafter(cls, of: dict[str, Any]) -> dict[str, Any]:
        """Before any weight is read. Raises UsageError."""
        with named_below("of"):
            drafters.config(of)
        return of


@drafters.register("adaptive")
class Adaptive(Drafter):
    """Chains of a length of their own, at most the structure's gamma, from the drafter `of`; its q and its costs.

    `confidence` (SpecDec++ 2405.19715; THEORY 9): no further token is drafted once 1 - prod_j beta_hat_j
    exceeds 1 - `threshold`, with beta_hat_j the drafter's own probability of the token it drafted instead of a trained
    prediction head. A step not taken costs nothing. The token that crosses the threshold has been drawn and is still
    offered: the length may depend on the drafts before a position, never on whether the draft at that
    position is to be seen by the verifier, which would bias sampling.
    `heuristic` (transformers' assisted generation): `length` in the first round of a text, 2 more after a round whose
    drafts were all accepted, 1 fewer after a rejection, at least 1 and at most gamma.

    Both are functions of the text and of the drafts, so the replay is the copying one.
    """

    fills = frozenset({"chain"})
    replay: Literal["position", "copying"] | None = "copying"

    def __init__(self, config: AdaptiveConfig, target: "Target") -> None:
        wrapped = drafters.get(config.of["name"])
        refused = ""
        if "chain" not in wrapped.fills or wrapped is Adaptive:
            refused = "it needs a drafter of chains with a fixed length"
        elif wrapped.needs_reference or not wrapped.lossless:
            refused = "it needs a drafter that proposes by itself and leaves the output alone"
        elif config.rule == "confidence" and not wrapped.reports_confidence:
            refused = "this drafter reports no confidence; use drafter.rule=heuristic"
        if refused:
            raise UsageError(f"Bad value drafter.of={config.of['name']} with drafter.rule={config.rule}: {refused}.")
        with named_below("of"):
            self._init(drafters.build(config.of, target=target), config.rule, config.threshold, config.length)

    @classmethod
    def from_drafter(
        cls, drafter: Drafter, rule: Literal["confidence", "heuristic"], threshold: float = 0.3, length: int = 5
    ) -> "Adaptive":
        """Around a drafter that is already there."""
        adaptive = cls.__new__(cls)
        adaptive._init(drafter, rule, threshold, length)
        return adaptive

    def _init(self, drafter: Drafter, rule: str, threshold: float, length: int) -> None:
        self.drafter, self._rule, self._threshold, self._first = drafter, rule, threshold, length
        self.vocab_size, self.deepest = drafter.vocab_size, drafter.deepest
        if drafter.replay is None:
            self.replay = None
        self._length, self._offered, self._most = length, 0, length
        vars(self)["reads_states"] = drafter.reads_states  # declared by classes: here it is the wrapped drafter's

    def start(
        self,
        prompt: Sequence[int],
        capacity: int,
        generator: torch.Generator | None = None,
        reference: Sequence[int] | None = None,
    ) -> None:
        self._length, self._offered = self._first, 0
        self.drafter.start(prompt, capacity, generator, reference)

    def draft(self, structure: Structure) -> Draft:
        assert isinstance(structure, Chain)
        if self._rule == "confidence":
            return self.drafter.draft(structure.until(self._threshold))
        draft = self.drafter.draft(structure.clamped(self._length))
        self._offered, self._most = len(draft), structure.gamma
        return draft

    def commit(self, tokens: Sequence[int]) -> None:
        if self._offered:  # a round without a proposal says nothing about the length
            # All accepted: the round commits one token more than it offered.
            step = 2 if len(tokens) > self._offered else -1
            self._length = max(1, min(self._most, min(self._most, self._length) + step))
        self.drafter.commit(tokens)

    def read(self, states: Tensor) -> None:
        self.drafter.read(states)

    def laws(self, prompt: Sequence[int], text: Sequence[int]) -> Tensor | None:
        """Of the wrapped drafter: at every position a draft of one token is its own."""
        return self.drafter.laws(prompt, text)

    def prepare(self, capacity: int, structure: Structure) -> None:
        assert isinstance(structure, Chain)
        asked = structure.until(self._threshold) if self._rule == "confidence" else structure
        self.drafter.prepare(capacity, asked)

    def describe(self) -> dict[str, Any]:
        return self.drafter.describe()

    @property
    def flops_per_token(self) -> float:
        return self.drafter.flops_per_token
