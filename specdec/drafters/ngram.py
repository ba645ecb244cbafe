"""Context n-grams, or prompt lookup: the tokens that followed when the last ones appeared before."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Annotated, Literal

import numpy as np
from pydantic import Field
from torch import Tensor

from specdec.config import AtLeastOne, Named, typed
from specdec.drafters.base import DrafterCapabilities, drafters
from specdec.drafters.base.lookup import Lookup
from specdec.errors import UsageError
from specdec.ngrams.suffix_index import FinishedText, SuffixIndex
from specdec.records import Source, TextStart
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.tree_building.lookup_filling import NOTHING, Proposal, copied, filled, merged
from specdec.tree_building.possible_rounds import Continuations, PossibleRounds, copied_rounds

_BLOCK = 4096  # positions of a known text whose matches are in memory together
Matches = Sequence[Sequence[int]]  # for each match length, the positions that followed a match, latest first


@typed
class NgramConfig(Named):
    q: Literal["auto", "longest", 1, 2, 3, 4, 5, 6, 7, 8]
    order_max: Annotated[int, Field(ge=1, le=16)]
    order_min: AtLeastOne
    matches_max: AtLeastOne
    occurrence: Literal["common", "leftmost"]

    def __post_init__(self) -> None:
        least, most = self.order_min, self.order_max
        if least > most:
            raise UsageError(f"Bad value drafter.order_min={least}: it should be at most drafter.order_max={most}.")


@drafters.register("ngram")
class Ngram(Lookup):
    """Finds earlier occurrences of the last q tokens in prompt and output, and proposes the tokens that followed them,
    ranked by count and then by recency (N-Grammys 2411.03786, section 4; for a chain: prompt lookup, Saxena 2023).

    Rows are the k best continuations, a chain is the best one. In a tree, the node of rank j is the (j+1)-th most
    common token among the matches that agree with the path to it. Where q is "longest", the matches of `order_max`
    tokens come first, and those of fewer, down to `order_min`, get the rows and siblings that are left; "auto" is
    longest for a chain and 1 otherwise.

    Only the latest `matches_max` occurrences count. With `occurrence` "leftmost" a chain is what followed the first
    occurrence of the longest match of `order_min` to `order_max` tokens, as servers look prompts up (vLLM's n-gram
    proposer with prompt_lookup_min and prompt_lookup_max; transformers' prompt_lookup_num_tokens).

    Deterministic (q is a point mass); a draft costs a few dictionary look-ups; needs nothing.
    """

    capabilities = DrafterCapabilities(fills=frozenset({"chain", "rows", "tree"}), replay="start")

    def __init__(self, config: NgramConfig, target: Target) -> None:
        super().__init__(target)
        longest = tuple(range(config.order_max, config.order_min - 1, -1))
        # Match lengths for a chain, and for rows and trees, in the order in which they are tried.
        self._of_chain: tuple[int, ...] = longest if config.q in ("auto", "longest") else (int(config.q),)
        self._of_several: tuple[int, ...] = (1,) if config.q == "auto" else self._of_chain
        self._matches_max = config.matches_max
        self._leftmost = config.occurrence == "leftmost"
        if self._leftmost:
            self.capabilities = replace(self.capabilities, fills=frozenset({"chain"}))

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self._index = SuffixIndex(dict.fromkeys(self._of_chain + self._of_several), self._leftmost)
        self._index.extend(text.prompt)
        self._index.matches(self._of_chain[0], 1)  # indexes the prompt now, as part of the prefill

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        self._index.extend(tokens)

    def retract(self, count: int) -> bool:
        self._index.retract(count)
        return True

    def propose(self, structure: Structure) -> Proposal:
        width = structure.gamma
        if width == 0:
            return NOTHING
        if structure.single:
            rows = self.rows(1, width, self._of_chain)
            return copied(rows[0], "ngram") if rows else NOTHING
        if structure.rows is not None:
            return merged((row, Source("ngram", rank)) for rank, row in enumerate(self.rows(structure.rows, width)))

        def siblings(matches: Matches, count: int) -> Iterator[tuple[int, str, Matches]]:
            following = islice(self.following(matches).items(), count)
            return ((token, "ngram", agreeing) for token, agreeing in following)

        return filled(structure.tree, self.matches(), siblings)

    def possible_rounds(
        self, prompt: Sequence[int], text: Sequence[int], limit: int, structures: Sequence[Structure]
    ) -> Sequence[PossibleRounds | None]:
        known = FinishedText(prompt, text)
        return [self._possible_rounds(known, limit, structure) for structure in structures]

    def _possible_rounds(self, known: FinishedText, limit: int, structure: Structure) -> PossibleRounds | None:
        orders = self._of_chain if structure.single else self._of_several
        # In a chain, the matches of one length decide; with several lengths, rows and trees add those of the others.
        if self._leftmost or not structure.single and len(orders) > 1:
            return None
        parts = []
        for first in range(0, max(1, len(known.places)), _BLOCK):
            places = known.places[first : first + _BLOCK]
            room = limit - 1 - np.arange(first, first + len(places))
            at, begin = known.matches(orders, self._matches_max, places)
            left = places[at] - begin  # no row goes beyond the end of the text that is known there
            found = Continuations(known.tokens, known.tokens, places, room, at, begin, left, left)
            parts.append(copied_rounds(found, structure, "ngram", known.windows))
        *columns, _ = zip(*parts, strict=True)
        return PossibleRounds._make((*map(np.concatenate, columns), "ngram"))

    def rows(self, k: int, w: int, orders: Sequence[int] = ()) -> list[tuple[int, ...]]:
        """Return at most k continuations of the text, best first, of w tokens, or of fewer where the text ends before.
        None is the beginning of another one of its match length, or of one before it. The match lengths `orders`, tried
        in turn, are by default those for several rows.
        """
        rows, text = list[tuple[int, ...]](), self._index.text
        for order in orders or self._of_several:
            positions = self._index.matches(order, self._matches_max)
            if not positions:
                continue
            counts = Counter(tuple(text[position : position + w]) for position in positions)
            if positions[0] + w > len(text):  # the latest matches run into the end of the text
                for row in [row for row in counts if len(row) < w]:
                    if any(other is not row and other[: len(row)] == row for other in counts):
                        del counts[row]
            # By count, and then by recency: equals stay in the order of insertion.
            ranked = (row for row, _ in counts.most_common())
            rows += [row for row in ranked if not any(other[: len(row)] == row for other in rows)]
            if len(rows) >= k:
                return rows[:k]
        return rows

    def matches(self) -> Matches:
        """Return the matches of the text's end: the place of a tree's root."""
        return [self._index.matches(order, self._matches_max) for order in self._of_several]

    def following(self, matches: Matches) -> dict[int, Matches]:
        """Return the tokens that followed `matches`, best first, each with the matches that go on with it."""
        text = self._index.text
        of_orders: list[dict[int, list[int]]] = []
        ranked: dict[int, None] = {}
        for positions in matches:
            of_tokens: dict[int, list[int]] = {}
            for position in positions:
                if position < len(text):
                    of_tokens.setdefault(text[position], []).append(position + 1)
            of_orders.append(of_tokens)
            for token, _ in sorted(of_tokens.items(), key=lambda item: len(item[1]), reverse=True):
                ranked[token] = None  # a token that was ranked already keeps its place
        return {token: [of_tokens.get(token, ()) for of_tokens in of_orders] for token in ranked}
