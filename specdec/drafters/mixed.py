"""Rows shared out between two strategies: first those that the context offers, then those of the model's own bigram."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Annotated, Any, cast

from pydantic import Field

from specdec.config import Named, typed
from specdec.drafters.base import DrafterCapabilities, drafters
from specdec.drafters.base.lookup import Lookup, TokenLookup
from specdec.drafters.base.nested import Composite, built_part, named_below
from specdec.drafters.ngram import Matches, Ngram
from specdec.errors import UsageError
from specdec.records import Source
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.tree_building.lookup_filling import NOTHING, Proposal, filled, merged


@typed
class MixedConfig(Named):
    context: dict[str, Any]
    bigram: dict[str, Any]
    context_rows: Annotated[int, Field(ge=0)] | None
    fill: bool

    def __post_init__(self) -> None:
        for place, values, needed, what in (
            ("context", self.context, Ngram, "ngram"),
            ("bigram", self.bigram, TokenLookup, "model_bigram or model_unigram"),
        ):
            with named_below(place):
                drafters.config(values)
            if not issubclass(drafters.get(values["name"]), needed):
                raise UsageError(f"Bad value drafter.{place}.name={values['name']}: it should be {what}.")
        if self.context_rows is None and not self.fill:
            raise UsageError(
                "Bad value drafter.fill=false: fixed shares need a drafter.context_rows, how many are the context's."
            )


@drafters.register("mixed")
class Mixed(Composite, Lookup):
    """Context n-grams and the extended model bigram in one draft (N-Grammys 2411.03786, section 4).

    Of k rows, the context has as many as it finds, at most `context_rows`, and the bigram has the rest, so that the
    shares vary from round to round. Without `fill` the shares are fixed: rows that the context leaves stay empty. A row
    that is there already is dropped, and the next one takes its place. A chain is the first row. Siblings in a tree are
    shared out in the same way: first the tokens that followed the matches which agree with the path, then those that
    the bigram ranks first after the parent.

    The rank of a row is the one that its strategy gave it; the rank of a node in a tree is its place among its
    siblings. Deterministic (q is a point mass); costs and needs what its two parts do.
    """

    capabilities = DrafterCapabilities(fills=frozenset({"chain", "rows", "tree"}), replay="start")

    def __init__(self, config: MixedConfig, target: Target) -> None:
        super().__init__(target)
        self.context = context = cast(Ngram, built_part("context", config.context, target))
        self.bigram = bigram = cast(TokenLookup, built_part("bigram", config.bigram, target))
        self.nested = {"context": context, "bigram": bigram}
        self._context_rows, self._fill = config.context_rows, config.fill
        fills = self.capabilities.fills & context.capabilities.fills
        self.capabilities = replace(self.capabilities, fills=fills, vocab_size=bigram.capabilities.vocab_size)

    def prepare(self, capacity: int, structure: Structure) -> None:
        """Raises UsageError: more rows or siblings than the bigram could offer alone, where it fills what is left."""
        if self._fill:
            super().prepare(capacity, structure)

    def propose(self, structure: Structure) -> Proposal:
        if structure.gamma == 0:
            return NOTHING
        if structure.single:
            if self._share(1):
                proposal = self.context.propose(structure)
                if proposal.tokens or not self._fill:
                    return proposal
            return merged(self._bigram_rows(1, structure.gamma, ()))
        if structure.rows is not None:
            k, w = structure.rows, structure.gamma
            rows = self.context.rows(self._share(k), w) if self._share(k) else []
            found = ((row, Source("ngram", rank)) for rank, row in enumerate(rows))
            return merged(chain(found, self._bigram_rows(self._rest(k, len(rows)), w, rows)))
        return filled(structure.tree, (self.bigram.last, self.context.matches()), self._siblings)

    def _share(self, count: int) -> int:
        """Return how many of `count` rows or siblings the context may have."""
        return count if self._context_rows is None else min(count, self._context_rows)

    def _rest(self, count: int, found: int) -> int:
        """Return how many of `count` the bigram may have, where the context has `found` some."""
        return count - (found if self._fill else self._share(count))

    def _bigram_rows(
        self, k: int, w: int, taken: Sequence[tuple[int, ...]]
    ) -> Iterator[tuple[tuple[int, ...], Source]]:
        if k:
            ranked = enumerate(self.bigram.rows(self.bigram.last, k + len(taken), w))
            fresh = ((row, Source(self.bigram.strategy, rank)) for rank, row in ranked if row not in taken)
            yield from islice(fresh, k)

    def _siblings(self, place: tuple[int, Matches], count: int) -> Iterator[tuple[int, str, tuple[int, Matches]]]:
        parent, matches = place
        following = self.context.following(matches)
        taken = list(islice(following, self._share(count)))
        for token in taken:
            yield token, "ngram", (token, following[token])
        rest = self._rest(count, len(taken))
        if rest:
            ranked = self.bigram.ranked(parent, rest + len(taken))
            for token in islice((token for token in ranked if token not in taken), rest):
                yield token, self.bigram.strategy, (token, following.get(token, ()))

    def describe(self) -> dict[str, Any]:
        return self.bigram.describe()
