"""Context n-grams, or prompt lookup: copy what followed the last time these tokens appeared."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import Field

from specdec.config import AtLeastOne, typed
from specdec.drafters.base import Drafter, drafters
from specdec.errors import UsageError
from specdec.records import EMPTY, Draft, Source, chain_tree
from specdec.structures.base import Structure

if TYPE_CHECKING:
    from specdec.targets.base import Target


@typed
class NgramConfig:
    name: Literal["ngram"]
    order_max: Annotated[int, Field(ge=1, le=16)]
    order_min: AtLeastOne
    matches_max: AtLeastOne


class SuffixIndex:
    """Where each run of n tokens was followed by something, for n = `order_min`..`order_max`, grown token by token.

    Memory is linear in the text: one link and at most one table entry per token and order. A lookup costs
    O(orders + matches), whatever the length of the text.
    """

    def __init__(self, order_min: int, order_max: int) -> None:
        self.orders = range(order_max, order_min - 1, -1)
        self.text: list[int] = []
        self._pending = 0
        # For each order: n-gram -> the latest position after it; and, by position, the one before with the same n-gram.
        self._latest: dict[int, dict[tuple[int, ...], int]] = {order: {} for order in self.orders}
        self._earlier: dict[int, list[int]] = {order: [] for order in self.orders}

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens; they are indexed at the next lookup, so that the cost is the draft's."""
        self.text.extend(tokens)

    def matches(self, limit: int) -> list[int]:
        """Positions that followed the longest indexed suffix of the text, latest first, at most `limit`."""
        self._index()
        for order in self.orders:
            if order > len(self.text):
                continue
            position = self._latest[order].get(tuple(self.text[-order:]), -1)
            if position < 0:
                continue
            earlier = self._earlier[order]
            found: list[int] = []
            while position >= 0 and len(found) < limit:
                found.append(position)
                position = earlier[position]
            return found
        return []

    def _index(self) -> None:
        text = self.text
        for position in range(self._pending, len(text)):
            for order in self.orders:
                # The n-gram before `position` is now known to be followed by the token there.
                if position < order:
                    self._earlier[order].append(-1)
                    continue
                latest = self._latest[order]
                key = tuple(text[position - order : position])
                self._earlier[order].append(latest.get(key, -1))
                latest[key] = position
        self._pending = len(text)


@drafters.register("ngram")
class Ngram(Drafter):
    """Longest match of the last `order_max`..`order_min` tokens in prompt and output; the next gamma tokens of each
    match, ranked by count and then by recency (N-Grammys 2411.03786, section 4; prompt lookup, Saxena 2023).

    Of a suffix that occurred more often than `matches_max` times, the latest occurrences are counted. Deterministic
    (q is a point mass); one draft is a few dictionary lookups; needs nothing. Several tokens are copied at once, so
    its replay is the copying one.
    """

    fills = frozenset({"chain"})
    replay = "copying"

    def __init__(self, config: NgramConfig, target: "Target") -> None:
        if config.order_min > config.order_max:
            raise UsageError(
                f"Bad value drafter.order_min={config.order_min}: it should be at most "
                f"drafter.order_max={config.order_max}."
            )
        self._config = config
        self._device = target.device
        self._index = SuffixIndex(config.order_min, config.order_max)

    def start(
        self,
        prompt: Sequence[int],
        capacity: int,
        generator: torch.Generator | None = None,
        reference: Sequence[int] | None = None,
    ) -> None:
        self._index = SuffixIndex(self._config.order_min, self._config.order_max)
        self._index.extend(prompt)
        self._index.matches(1)  # index the prompt now: it is part of the prefill, not of the first draft

    def commit(self, tokens: Sequence[int]) -> None:
        self._index.extend(tokens)

    def draft(self, structure: Structure) -> Draft:
        width = structure.gamma
        if width == 0:
            return EMPTY
        text = self._index.text
        counts: dict[tuple[int, ...], int] = {}
        for position in self._index.matches(self._config.matches_max):
            continuation = tuple(text[position : position + width])
            counts[continuation] = counts.get(continuation, 0) + 1
        if not counts:
            return EMPTY
        # Insertion order is recency and `max` keeps the first of equals: count first, then recency.
        best = max(counts, key=counts.__getitem__)
        return Draft(
            tokens=torch.tensor(best, device=self._device),
            tree=chain_tree(len(best)),
            source=_SOURCE * len(best),
        )


_SOURCE = (Source("ngram", 0),)
