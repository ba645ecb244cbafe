"""Suffix matches of any length: the tokens that followed the longest repeated suffix, here or in an earlier output."""

from array import array
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field
from torch import Tensor

from specdec.config import AtLeastOne, Named, typed
from specdec.drafters.base import DrafterCapabilities, drafters
from specdec.drafters.base.lookup import Lookup
from specdec.ngrams.suffix_automaton import START, Match, SuffixAutomaton
from specdec.records import TextStart
from specdec.structures.base import Structure
from specdec.targets.base import Target
from specdec.tree_building.lookup_filling import NOTHING, ContinuationTrie, Proposal, copied
from specdec.tree_building.possible_rounds import Continuations, PossibleRounds, copied_rounds


@typed
class SuffixConfig(Named):
    match_min: AtLeastOne
    factor: Annotated[float, Field(ge=0.0)]
    offset: float
    matches_max: AtLeastOne
    earlier_outputs: Annotated[int, Field(ge=0)]


_BETWEEN = -1  # stands behind every earlier output: no match passes it


@drafters.register("suffix")
class Suffix(Lookup):
    """Finds the longest suffix of the text that occurred before in prompt or output, or in an earlier output of the
    run, and copies what followed its first occurrence (SAM decoding, Hu et al. 2411.10666). A match of n tokens is
    worth a draft of at most factor * n + offset tokens, as in suffix decoding (Oliaro et al. 2411.04975).

    Both are found with suffix automata, in amortised constant time a token. Of an earlier and an own match the longer
    one is copied, of equals the own. A copy that reaches the end of the text goes on with what it has copied. The rows
    that are left, and the other children of a tree's nodes, come from shorter suffixes, which occurred first elsewhere;
    they are ranked by the length of the match.

    Earlier outputs are what the baseline wrote (`remember`), so every gamma, every repeat and every replay of a prompt
    matches the same ones: those of the prompts that came before it, never its own. No more than `earlier_outputs`
    tokens are kept.

    Deterministic (q is a point mass); a draft costs a few dictionary look-ups; needs nothing.
    """

    capabilities = DrafterCapabilities(fills=frozenset({"chain", "rows", "tree"}), replay="start")

    def __init__(self, config: SuffixConfig, target: Target) -> None:
        super().__init__(target)
        self._config = config
        self._text = SuffixAutomaton()
        self._outputs = SuffixAutomaton()
        self._outputs_text = array("q")  # the same tokens as numbers side by side
        self._full = config.earlier_outputs == 0
        # For each prompt, how much of the earlier outputs there was before its own.
        self._limits: dict[tuple[int, ...], int] = {}
        self._limit, self._place = 0, START

    def start(self, text: TextStart, states: Tensor | None = None) -> None:
        self._text = SuffixAutomaton()
        self._limit, self._place = self._limits.get(tuple(text.prompt), len(self._outputs.text)), START
        self.commit(text.prompt)

    def commit(self, tokens: Sequence[int], states: Tensor | None = None) -> None:
        self._text.extend(tokens)
        if self._limit:
            for token in tokens:
                self._place = self._outputs.follow(self._place, token, self._limit)

    @property
    def remembers(self) -> str:
        return "earlier_outputs=0" if self._config.earlier_outputs else ""

    def remember(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        if self._full or tuple(prompt) in self._limits:
            return
        kept = len(self._outputs.text)
        self._full = kept + len(output) + 1 > self._config.earlier_outputs
        if not self._full:
            self._limits[tuple(prompt)] = kept
            self._outputs.extend((*output, _BETWEEN))
            self._outputs_text.extend((*output, _BETWEEN))

    def propose(self, structure: Structure) -> Proposal:
        width = structure.gamma
        if width == 0:
            return NOTHING
        if structure.single:
            rows = self._rows(1, width)
            return copied(rows[0], "suffix") if rows else NOTHING
        rows = self._rows(self._config.matches_max, width)
        # A row that begins another one adds nothing to a tree, and `ContinuationTrie` leaves it out of rows.
        return ContinuationTrie(rows, counted=False).proposal(structure, "suffix") if rows else NOTHING

    def possible_rounds(
        self, prompt: Sequence[int], text: Sequence[int], limit: int, structures: Sequence[Structure]
    ) -> Sequence[PossibleRounds | None]:
        self.start(TextStart(prompt, len(prompt) + limit))
        most = 1 if all(structure.single for structure in structures) else self._config.matches_max
        found: list[tuple[int, int, int, bool]] = []
        for place, token in enumerate(text):
            found += [(place, *match, earlier) for match, earlier in self._matches(most)]
            self.commit((token,))
        matches = np.array(found, dtype=np.int64).reshape(-1, 4).T
        known, outputs = np.array((*prompt, *text)), np.frombuffer(self._outputs_text, dtype=np.int64)
        tokens, places = np.concatenate([known, outputs]), len(prompt) + np.arange(len(text))
        room = limit - 1 - np.arange(len(text))
        ends = np.append(np.flatnonzero(outputs == _BETWEEN), len(outputs))
        rounds: list[PossibleRounds] = []
        for structure in structures:
            longest = np.diff(matches[0], prepend=-1) > 0  # of each place: a chain copies this match alone
            at, length, begin, earlier = matches[:, longest] if structure.single else matches
            end = np.where(earlier > 0, ends[np.searchsorted(ends, begin).clip(max=len(ends) - 1)], places[at])
            left = end - begin
            size = (self._config.factor * length + self._config.offset + 1e-6).astype(np.int64)
            size = np.where(earlier > 0, np.minimum(size, left), size)
            size[length < self._config.match_min] = 0
            copies = Continuations(known, tokens, places, room, at, begin + len(known) * earlier, size, left)
            rounds.append(copied_rounds(copies, structure, "suffix"))
        return rounds

    def _rows(self, matches: int, width: int) -> list[tuple[int, ...]]:
        """Return what followed the longest `matches` matches, at most `width` tokens of each."""
        rows: list[tuple[int, ...]] = []
        for match, earlier in self._matches(matches):
            # As in ArcticInference, rounding errors of the product take no token away.
            size = min(width, int(self._config.factor * match.length + self._config.offset + 1e-6))
            if size > 0 and match.length >= self._config.match_min:
                text, begin = (self._outputs if earlier else self._text).text, match.position
                row = text[begin : begin + size]
                if earlier:
                    row = row[: row.index(_BETWEEN)] if _BETWEEN in row else row
                while len(row) < size and not earlier:  # the text ends: what was copied of it follows
                    row += row[: size - len(row)]
                if row:
                    rows.append(tuple(row))
        return rows

    def _matches(self, most: int) -> list[tuple[Match, bool]]:
        """Return at most `most` matches, the longest first, each with True where it is in an earlier output."""
        matches = [(match, False) for match in self._text.repeats(most)]
        matches += ((match, True) for match in self._outputs.matches(self._place, most))
        matches.sort(key=lambda item: item[0].length, reverse=True)  # own ones stay before others of their length
        return matches[:most]
