"""Another drafter's chain, ended early where it looks likely to fail, or made as long as the last rounds suggest."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor

from specdec.config import AtLeastOne, Named, Probability, typed
from specdec.drafters.base import Drafter, DrafterCapabilities, Replay, drafters
from specdec.drafters.base.nested import Wrapper, named_below
from specdec.errors import UsageError
from specdec.records import Draft, TextStart
from specdec.structures.base import Structure
from specdec.targets.base import Target

Rule = Literal["confidence", "heuristic"]


@typed
class AdaptiveConfig(Named):
    of: dict[str, Any]
    rule: Rule
    threshold: Probability
    length: AtLeastOne

    def __post_init__(self) -> None:
        with named_below("of"):
            drafters.config(self.of)
        name = self.of["name"]
        wrapped = drafters.get(name).capabilities
        refused = ""
        if "chain" not in wrapped.fills or drafters.get(name) is Adaptive:
            refused = "it needs a drafter of chains with a fixed length"
        elif wrapped.needs_reference or not wrapped.lossless:
            refused = "it needs a drafter that proposes by itself and leaves the output alone"
        elif self.rule == "confidence" and not wrapped.reports_confidence:
            refused = "this drafter reports no confidence; use drafter.rule=heuristic"
        if refused:
            raise UsageError(f"Bad value drafter.of={name} with drafter.rule={self.rule}: {refused}.")


@drafters.register("adaptive")
class Adaptive(Wrapper):
    """Drafts chains with the drafter `of` and chooses their length, at most the structure's gamma. q and the cost of a
    token are those of `of`.

    `confidence` (SpecDec++ 2405.19715; theory.md 9.3): no further token is drafted once 1 - prod_j beta_hat_j exceeds
    1 - `threshold`. beta_hat_j is the drafter's own probability of the token that it drafted, in place of a trained
    prediction head. The token that crosses the threshold has been drawn and is still offered: the length may depend on
    the tokens before a position, but a drawn token is never withdrawn, which would bias sampling.
    `heuristic` (transformers' assisted generation): `length` in the first round of a text, 2 more after a round whose
    tokens were all accepted, 1 fewer after a rejection, at least 1 and at most gamma.
    """

    capabilities = DrafterCapabilities(fills=frozenset({"chain"}), replay="copying")

    def __init__(self, drafter: Drafter, rule: Rule, threshold: float = 0.3, length: int = 5) -> None:
        super().__init__(drafter)
        self._rule, self._threshold, self._first = rule, threshold, length
        own, fills = drafter.capabilities, type(self).capabilities.fills
        replay: Replay | None = "copying" if own.replay in ("position", "start") else own.replay
        self.capabilities = replace(own, fills=fills, reports_confidence=False, replay=replay)
        self._length, self._offered, self._most = length, 0, length

    @classmethod
    def from_config(cls, config: AdaptiveConfig, target: Target) -> "Adaptive":
        with named_below("of"):
            return cls(drafters.build(config.of, target=target), config.rule, config.threshold, config.length)

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self._length, self._offered = self._first, 0
        super().start(text, states)

    def draft(self, structure: Structure) -> Draft:
        if self._rule == "confidence":
            return self.drafter.draft(structure.until(self._threshold))
        draft = self.drafter.draft(structure.clamped(self._length))
        self._offered, self._most = len(draft), structure.gamma
        return draft

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        if self._offered:  # a round without a proposal says nothing about the length
            # All accepted: the round commits one token more than it offered.
            step = 2 if len(tokens) > self._offered else -1
            self._length = max(1, min(self._most, min(self._most, self._length) + step))
            self._offered = 0  # the next round may be another drafter's
        super().commit(tokens, states)

    def prepare(self, capacity: int, structure: Structure) -> None:
        super().prepare(capacity, structure.until(self._threshold) if self._rule == "confidence" else structure)
