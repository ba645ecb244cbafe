"""Lookahead decoding: n-grams collected from Jacobi iterations, verified in the call that runs the next iteration."""

from collections.abc import Sequence
from itertools import cycle, islice
from typing import Annotated

from pydantic import Field
from torch import Tensor

from specdec.config import AtLeastOne, Named, typed
from specdec.drafters.base import DrafterCapabilities, drafters
from specdec.drafters.base.lookup import Lookup
from specdec.errors import UsageError
from specdec.records import Draft, Source, TextStart
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.tree_building.lookup_filling import PathTree, Proposal

AtLeastTwo = Annotated[int, Field(ge=2)]


@typed
class LookaheadConfig(Named):
    window: AtLeastTwo
    ngram: AtLeastTwo
    candidates: AtLeastOne
    pool_from_prompt: bool


@drafters.register("lookahead")
class Lookahead(Lookup):
    """Runs Jacobi iterations over a window of coming positions and offers the n-grams that they wrote earlier (Fu et
    al. 2402.02057, sections 3.1 to 3.3; W = `window`, N = `ngram`, G = `candidates`).

    The window is a table of guesses, N-1 rows, which are the results of the last N-1 calls, by W columns. Positions
    count from the root, which is at 0. Row 0 is a chain at positions 1 to W-1. Column i, from 0 on, hangs below row 0's
    token at position i, column 0 below the root: a chain of its tokens of rows 1 to N-2, at positions i+1 to i+N-2.
    So a guess sees row 0 up to position i and its own column. This is a token tree. The candidates, which are the
    pool's n-grams that begin with the root, are more branches of it; one call evaluates both.

    The target's first choice at the end of a column is the column's next token. With it, and behind the token below
    which it hangs, the column is an n-gram for the pool, which keeps the G latest ones of each first token. Then row 0
    goes, row 1 without its first token becomes row 0, and the new tokens are the last row: the window moves on by one
    position, however many were committed. At the start the window is row 0 alone, W+N-3 tokens of the prompt. In each
    of the next N-2 rounds it gets a row and loses a column, the leftmost.

    Differences from the authors' program: guesses of the window may be accepted like candidates. Equal tokens below one
    parent are one node. Row 0 begins with the prompt's tokens in turn, where theirs are drawn. Candidates are offered
    while the window fills. End tokens stay in the window. All N-1 tokens of a candidate can be accepted. As theirs,
    `pool_from_prompt` puts the n-grams of prompt and output into the pool too.

    The structure gives the limits, not the topology. Where it is too small for all, candidates go before columns and
    columns from left to right. A column that is left out keeps its last token for its next one, and gives no n-gram.

    The target's first choice is its most likely token at every temperature, so q is a point mass. A draft costs a few
    dictionary look-ups for each node, learning from a call an argmax over its logits, for which the host waits.
    """

    capabilities = DrafterCapabilities(fills=frozenset({"rows", "dynamic"}), reads_logits=True, replay="calling")

    def __init__(self, config: LookaheadConfig, target: Target) -> None:
        super().__init__(target)
        self._window, self._ngram, self._candidates = config.window, config.ngram, config.candidates
        self._pool_from_prompt = config.pool_from_prompt
        # A full draft has (W + G)(N - 1) - 1 nodes; more where a narrow window is largest while it fills.
        window, levels = config.window, config.ngram - 1
        largest = max((row + 1) * (window + levels - 1 - row) - 1 for row in range(levels))
        self.nodes, self.depth = largest + config.candidates * levels, window + levels - 2
        # A column each, of which there are most in round 2, and a candidate each.
        self.branches = window + max(levels - 2, 0) + config.candidates
        self.start(TextStart((0,), 1))

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        prompt = text.prompt
        self._root = prompt[-1]
        self._rows = [list(islice(cycle(prompt), self._window + self._ngram - 3))]
        # For each first token, the continuations that were seen last, in the order in which they were seen.
        self._pool: dict[int, dict[tuple[int, ...], None]] = {}
        self._latest = list(prompt[-self._ngram :])  # tokens of the text
        self._drafted: Draft | None = None
        self._ends: list[int | None] = []  # last nodes of the columns of that draft; None for a column left out
        if self._pool_from_prompt:
            for place in range(len(prompt) - self._ngram + 1):
                self._note(prompt[place : place + self._ngram])

    def prepare(self, capacity: int, structure: Structure) -> None:
        """Raises UsageError: the structure has no room for the whole window and all candidates."""
        for needed, offered, what in (
            (self.nodes, structure.nodes, "nodes"),
            (self.depth, structure.gamma, "levels"),
            (self.branches, structure.branches, "paths"),
        ):
            if needed > offered:
                raise UsageError(
                    f"Bad value structure={structure.name}: drafter.window={self._window}, drafter.ngram={self._ngram} "
                    f"and drafter.candidates={self._candidates} need {needed} {what}, and it has {offered}; raise "
                    f"{structure.sized_by}, or lower these keys."
                )

    def _note(self, ngram: Sequence[int]) -> None:
        """Keep an n-gram. One that is known becomes the latest; the oldest goes where there are too many."""
        known, seen = self._pool.setdefault(ngram[0], {}), tuple(ngram[1:])
        known.pop(seen, None)
        known[seen] = None
        if len(known) > self._candidates:
            del known[next(iter(known))]

    def draft(self, structure: Structure) -> Draft:
        self._drafted = super().draft(structure)
        return self._drafted

    def propose(self, structure: Structure) -> Proposal:
        tree = PathTree(structure.nodes, structure.gamma, structure.branches)
        for rank, candidate in enumerate(reversed(self._pool.get(self._root, {}))):
            tree.add(candidate[: structure.gamma], Source("pool", rank))
        self._ends = [tree.add(path, Source("window", column)) for column, path in enumerate(self._columns())]
        return tree.proposal()

    def _columns(self) -> list[list[int]]:
        """Return the path from the root to the last token of each column."""
        first, *others = self._rows
        return [first[:column] + [row[column] for row in others] for column in range(len(first) + 1)]

    def observe(self, draft: Draft, logits: Tensor) -> None:
        if draft is not self._drafted:
            return  # of another drafter: it says nothing about the window
        choices: list[int] = logits.argmax(-1).tolist()
        first, *others = self._rows
        full = len(self._rows) == self._ngram - 1
        results: list[int] = []
        for column, (path, end) in enumerate(zip(self._columns(), self._ends, strict=True)):
            if end is None:
                results.append(path[-1])
                continue
            results.append(choices[end + 1])
            if full:
                above = first[column - 1] if column else self._root
                self._note([above, *(row[column] for row in others), results[-1]])
        if full:
            self._rows = [*others, results]
            self._rows[0] = self._rows[0][1:]
        else:
            self._rows = [row[1:] for row in (first, *others, results)]

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        for token in tokens:
            self._latest = [*self._latest, token][-self._ngram :]
            if self._pool_from_prompt and len(self._latest) == self._ngram:
                self._note(self._latest)
        self._root = tokens[-1]
