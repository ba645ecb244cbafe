"""Several drafters, of which each round asks the one that lately gave most for its cost."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from pydantic import Field
from torch import Tensor

from specdec.config import AtLeastOne, Named, Probability, typed
from specdec.drafters.base import Drafter, DrafterCapabilities, Replay, drafters
from specdec.drafters.base.nested import Composite, built_part, checked_part, described
from specdec.errors import UsageError
from specdec.records import EMPTY, Draft, TextStart
from specdec.structures.base import Structure
from specdec.targets.base import Target

Cost = Annotated[float, Field(ge=0.0)]


@typed
class CascadeConfig(Named):
    of: dict[str, dict[str, Any]]
    gammas: list[AtLeastOne] | None
    costs: dict[str, Cost] | None
    verification: Cost
    discount: Annotated[Probability, Field(gt=0.0)]
    exploration: Cost

    def __post_init__(self) -> None:
        if not self.of:
            raise UsageError(
                "Bad value drafter.of={}: there is nothing to choose from; name drafters below it, as in "
                "+drafter@drafter.of.context=ngram."
            )
        for label, values in self.of.items():
            checked_part(f"of.{label}", values)
        if self.gammas == []:
            raise UsageError(
                "Bad value drafter.gammas=[]: give depths to choose from, or null for the structure's own."
            )
        for label, cost in sorted((self.costs or {}).items()):
            if label not in self.of:
                raise UsageError(
                    f"Bad value drafter.costs.{label}={cost}: drafter.of has no such drafter; it has "
                    f"{', '.join(self.of)}."
                )


class Bandit:
    """Discounted UCB (Garivier and Moulines 0805.3415, section 2.2) for a ratio: tokens per unit of cost.

    After each round every sum of the past is multiplied by `discount`, and that round is added to the sums of its arm:
    N_i rounds, Y_i tokens, C_i cost. An arm that was never tried goes first, in order. Then the arm with the largest

        Y_i / C_i + exploration * sqrt(ln n / N_i),    n = max(1, sum of all N_i)

    is chosen, the first among equals. There is no randomness.
    """

    def __init__(self, arms: int, discount: float, exploration: float) -> None:
        self._discount, self._exploration = discount, exploration
        self._sums = np.zeros((3, arms))  # rounds, tokens and cost of each arm

    def best(self, allowed: Sequence[int]) -> int:
        rounds, tokens, cost = self._sums[:, allowed]
        with np.errstate(divide="ignore", invalid="ignore"):
            width = np.sqrt(np.log(max(1.0, self._sums[0].sum())) / rounds)
            index = np.where(rounds > 0, tokens / cost + self._exploration * width, np.inf)
        return allowed[int(index.argmax())]  # the first of equals

    def learn(self, arm: int, tokens: int, cost: float) -> None:
        """Take note of a round that `arm` drafted: the tokens that it committed, and its cost above 0."""
        self._sums = self._sums * self._discount  # a new array: tables are shared by the drafters of a batch
        self._sums[:, arm] += 1, tokens, cost


@drafters.register("cascade")
class Cascade(Composite):
    """Asks one drafter of several for the draft of a round, and for one of several depths: the arm that `Bandit`
    chooses by what its last rounds gave for their cost.

    A round gives the tokens that it committed, and costs 1 + nodes x (c + `verification`) calls of the target on one
    token: c is the cost of a drafted token by that drafter, `verification` that of a verified one beside the root. Both
    are numbers from the configuration and not measured durations, with which no output could be reproduced. Where
    `costs` gives none, c is the drafter's operations for a token over the target's, and 0 where the target has none.
    So an empty draft costs 1 and gives 1.

    Lossless: given everything before a round, its arm is fixed, because the bandit knows past rounds only, begins anew
    with each text and draws nothing. The round is then an ordinary one of that drafter, with that drafter's q, and the
    rule gives it the target's law whatever was before; by induction over rounds the text has the target's law. A choice
    that looked at the tokens drawn in this round would bias them.

    Every drafter is told of every round, whoever drafted it; sources and q are those of the one that was asked.
    """

    capabilities = DrafterCapabilities(fills=frozenset({"chain", "rows", "tree"}), replay="copying")

    def __init__(
        self,
        parts: Mapping[str, Drafter],
        costs: Mapping[str, float],
        gammas: Sequence[int] | None,
        verification: float = 0.0,
        discount: float = 0.95,
        exploration: float = 0.3,
    ) -> None:
        """Make one of at least one part, tried first in this order, of the time of a token of each as a share of a call
        of the target on one token, and of depths to choose from; None for that of the structure. Raises UsageError: no
        structure that all parts fill.
        """
        self.parts, self.costs, self._verification = dict(parts), costs, verification
        self.nested = {f"of.{label}": part for label, part in self.parts.items()}
        self._discount, self._exploration = discount, exploration
        depths = [None] if gammas is None else sorted(set(gammas))
        self._arms = [(label, depth) for label in self.parts for depth in depths]
        # The abilities that all parts have, and the needs that any has. A choice depends on earlier rounds.
        abilities = [drafter.capabilities for drafter in self.nested.values()]
        replays = {can.replay for can in abilities}
        own: Replay = "calling" if "calling" in replays else "copying"
        self.capabilities = replace(
            abilities[0],
            fills=frozenset.intersection(type(self).capabilities.fills, *(can.fills for can in abilities)),
            reads_states=any(can.reads_states for can in abilities),
            reads_logits=any(can.reads_logits for can in abilities),
            reports_confidence=False,
            replay=None if None in replays else own,
            deepest=min((can.deepest for can in abilities if can.deepest is not None), default=None),
            vocab_size=next((can.vocab_size for can in abilities if can.vocab_size is not None), None),
        )
        if not self.capabilities.fills:
            raise UsageError("Bad value drafter.of: there is no structure that all of these drafters fill.")
        self._begin()

    @classmethod
    def from_config(cls, config: CascadeConfig, target: Target) -> "Cascade":
        parts = {label: built_part(f"of.{label}", values, target) for label, values in config.of.items()}
        whole = target.flops_per_token
        costs = {label: part.flops_per_token / whole if whole else 0.0 for label, part in parts.items()}
        costs |= config.costs or {}
        return cls(parts, costs, config.gammas, config.verification, config.discount, config.exploration)

    def _begin(self) -> None:
        self.bandit = Bandit(len(self._arms), self._discount, self._exploration)
        self._drafted: tuple[int, int] | None = None  # arm and nodes of this round

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self._begin()
        super().start(text, states)

    def draft(self, structure: Structure) -> Draft:
        self._drafted = None
        if structure.gamma == 0:
            return EMPTY
        # The arms that are no deeper than the structure; where all are, the shallowest ones.
        depths = [structure.gamma if depth is None else depth for _, depth in self._arms]
        most = max(structure.gamma, min(depths))
        arm = self.bandit.best([arm for arm, depth in enumerate(depths) if depth <= most])
        label, depth = self._arms[arm]
        shape = structure if depth is None else structure.clamped(depth)
        draft = self.parts[label].draft(shape)
        self._drafted = arm, len(draft)
        return draft

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        if self._drafted is not None:
            arm, nodes = self._drafted
            each = self.costs[self._arms[arm][0]] + self._verification
            self.bandit.learn(arm, len(tokens), 1 + nodes * each)
        self._drafted = None
        super().commit(tokens, states)

    def describe(self) -> dict[str, Any]:
        return {**described(self.parts), "costs": dict(self.costs)}

    @property
    def flops_per_token(self) -> float:
        """Operations of a token by the most expensive drafter: which one drafts depends on the text."""
        return max(drafter.flops_per_token for drafter in self.nested.values())
