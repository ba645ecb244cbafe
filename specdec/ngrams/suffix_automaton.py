"""An automaton over all substrings of a growing text: where its suffixes occurred first, and another text in it."""

from collections.abc import Iterable
from typing import NamedTuple


class Match(NamedTuple):
    """An earlier occurrence of the last `length` tokens; `position` is the place in the text right after it."""

    length: int
    position: int


class Place(NamedTuple):
    """The longest suffix of some text that occurs in the automaton's: its state and its length."""

    state: int
    length: int


START = Place(0, 0)


class SuffixAutomaton:
    """The smallest automaton of all substrings (Blumer et al. 1985), extended token by token in amortised constant
    time. A state stands for the substrings that end at the same positions; its link leads to the longest suffix of
    these that also ends elsewhere. Of the positions the first is kept, as in SAM decoding (2411.10666).

    Memory is linear in the text: at most two states and three transitions a token.
    """

    def __init__(self) -> None:
        self.text: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [0]  # the place after the first occurrence
        self._last = 0

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text."""
        following, link, length, end = self._next, self._link, self._length, self._end
        for token in tokens:
            self.text.append(token)
            state, new = self._last, len(following)
            self._last = new
            following.append({})
            link.append(0)
            length.append(length[state] + 1)
            end.append(len(self.text))
            while state >= 0 and token not in following[state]:
                following[state][token] = new
                state = link[state]
            if state < 0:
                continue
            known = following[state][token]
            if length[known] == length[state] + 1:
                link[new] = known
                continue
            # Only the shorter ones of these substrings end here as well: they get a state of their own.
            link[new] = clone = len(following)
            following.append(dict(following[known]))
            length.append(length[state] + 1)
            end.append(end[known])
            link.append(link[known])
            link[known] = clone
            while state >= 0 and following[state].get(token) == known:
                following[state][token] = clone
                state = link[state]

    def repeats(self, most: int) -> list[Match]:
        """Return where the suffixes of the text that occurred before did so first: for each such place the longest,
        the longest of all first, at most `most`.
        """
        return self._chain(self._link[self._last], most, [])

    def follow(self, place: Place, token: int, limit: int) -> Place:
        """Return the place after one more token of a text, amortised over the text in constant time. Of the automaton's
        own text the first `limit` tokens count.
        """
        state, length = place
        while True:
            after = self._next[state].get(token)
            if after is not None and self._end[after] <= limit:
                return Place(after, length + 1)
            if state == 0:
                return START
            state = self._link[state]
            length = self._length[state]

    def matches(self, place: Place, most: int) -> list[Match]:
        """Return the same of the suffix at `place` and of its own suffixes."""
        if place.length == 0:
            return []
        return self._chain(self._link[place.state], most, [Match(place.length, self._end[place.state])])

    def _chain(self, state: int, most: int, found: list[Match]) -> list[Match]:
        """Add the matches of a state and of those that its links lead to."""
        while state > 0 and len(found) < most:
            # Text added later divides states, and never changes where something occurred first.
            if not found or self._end[state] != found[-1].position:
                found.append(Match(self._length[state], self._end[state]))
            state = self._link[state]
        return found
