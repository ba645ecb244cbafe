"""The places where the last tokens of a text occurred before: one that grows, or one that is known to its end."""

from collections.abc import Iterable, Sequence

import numpy as np


class SuffixIndex:
    """The positions after each n-gram of a text, for every n in `orders`, extended token by token; or where `leftmost`,
    only the first position after each.

    Memory is linear in the text: one link and at most one table entry for each token and order. A lookup costs
    O(matches), whatever the length of the text.
    """

    def __init__(self, orders: Iterable[int], leftmost: bool = False) -> None:
        self.text: list[int] = []
        self._pending = 0
        self._leftmost = leftmost
        # For each order: n-gram -> the latest position after it, or the first; position -> the one that was there.
        self._tables: dict[int, tuple[dict[int, int], list[int]]] = {order: ({}, []) for order in orders}
        # The last n tokens as one number, 32 bits a token below a leading 1: cheaper to make and to hash than a tuple.
        # If the text is shorter than n, the number is shorter too and equals no other.
        self._keys = [1] * (max(self._tables) + 1)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens; they are indexed at the next lookup, so that the cost is the draft's."""
        self.text.extend(tokens)

    def retract(self, count: int) -> None:
        """Take the last `count` tokens back, as if they had never been appended."""
        length = len(self.text) - count
        for position in reversed(range(length, self._pending)):
            for order, (latest, earlier) in self._tables.items():
                before = earlier.pop()
                key = self._key(order, position)
                if before < 0:
                    del latest[key]
                else:
                    latest[key] = before
        if self._pending > length:
            self._pending = length
            self._keys = [self._key(order, length) for order in range(len(self._keys))]
        del self.text[length:]

    def _key(self, order: int, position: int) -> int:
        """Return the number that stands for the last `order` tokens before `position` (see `_keys`)."""
        key = 1
        for token in self.text[max(0, position - order) : position]:
            key = key << 32 | token
        return key

    def matches(self, order: int, limit: int) -> list[int]:
        """Return the positions after earlier occurrences of the last `order` tokens, latest first, at most `limit`."""
        if self._pending < len(self.text):
            self._index()
        latest, earlier = self._tables[order]
        position = latest.get(self._keys[order], -1)
        found: list[int] = []
        while position >= 0 and len(found) < limit:
            found.append(position)
            position = earlier[position]
        return found

    def _index(self) -> None:
        keys, leftmost, tables = self._keys, self._leftmost, [(order, *table) for order, table in self._tables.items()]
        longest_first = range(len(keys) - 1, 0, -1)
        for position in range(self._pending, len(self.text)):
            # The n-gram before `position` is now known to be followed by the token there.
            for order, latest, earlier in tables:
                key = keys[order]
                before = latest.get(key, -1)
                earlier.append(before)
                if before < 0 or not leftmost:
                    latest[key] = position
            token = self.text[position]
            for order in longest_first:
                keys[order] = keys[order - 1] << 32 | token
        self._pending = len(self.text)


class FinishedText:
    """A prompt and the text after it, with numbers for its windows: for all positions at once what `SuffixIndex` says.
    Token i of the text is written when `places[i]` tokens are known.
    """

    def __init__(self, prompt: Sequence[int], text: Sequence[int]) -> None:
        self.tokens = np.array((*prompt, *text), dtype=np.int64)  # [T]
        self.places = np.arange(len(prompt), len(self.tokens))
        self._windows = [np.zeros(len(self.tokens), dtype=np.int64)]  # of each length, from 0
        self._before: dict[int, np.ndarray] = {}

    def windows(self, longest: int) -> np.ndarray:
        """Return numbers [longest + 1, T] for the windows of each length that begin at each position: equal windows of
        a length have equal numbers, from 0. It is -1 where the text ends inside the window.
        """
        size = len(self.tokens)
        while len(self._windows) <= longest:
            length = len(self._windows)
            numbers = np.full(size, -1)
            if length == 1:
                numbers[:] = np.unique(self.tokens, return_inverse=True)[1]
            elif length <= size:
                shorter, last = self._windows[-1][: size - length + 1], self._windows[1][length - 1 :]
                numbers[: size - length + 1] = np.unique(shorter * size + last, return_inverse=True)[1]
            self._windows.append(numbers)
        return np.stack(self._windows[: longest + 1])

    def matches(self, orders: Sequence[int], limit: int, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return earlier occurrences of the last n tokens before each of `places` [P]: at most `limit` a place. Of the
        orders n the first with an occurrence counts, for each place on its own. Each of the M matches has an entry in
        two arrays: the number of its place, in ascending order, and the position after the occurrence, the latest of a
        place first.
        """
        before = np.stack([self._earlier(order) for order in orders])
        order = np.argmax(before[:, places] >= 0, axis=0)
        position = before[order, places]
        found = [position]
        while len(found) < limit and position.max(initial=-1) >= 0:
            position = np.where(position >= 0, before[order, position], -1)
            found.append(position)
        table = np.stack(found, axis=1)
        place, number = np.nonzero(table >= 0)
        return place, table[place, number]

    def _earlier(self, order: int) -> np.ndarray:
        """Return for each position [T] the latest earlier one after the same `order` tokens, or -1."""
        if order not in self._before:
            size = len(self.tokens)
            before = np.full(size, -1)
            numbers = self.windows(order)[order, : max(0, size - order)]
            alike = np.argsort(numbers, kind="stable")
            again = numbers[alike[1:]] == numbers[alike[:-1]]
            before[order + alike[1:][again]] = order + alike[:-1][again]
            self._before[order] = before
        return self._before[order]
