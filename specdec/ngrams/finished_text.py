"""A text that is known to its end: where each of its n-grams occurred before, for all positions at once. Knows neither
drafts nor structures.
"""

from collections.abc import Sequence

import numpy as np


class FinishedText:
    """A prompt and the text after it, with numbers for its windows. `SuffixIndex` says the same of a growing text.

    Attributes:
        tokens: [T] of prompt and text.
        places: [N] of the text's own tokens among them: token i of the text is written when `places[i]` are known.
    """

    def __init__(self, prompt: Sequence[int], text: Sequence[int]) -> None:
        self.tokens = np.array((*prompt, *text), dtype=np.int64)
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
        """Return earlier occurrences of the last n tokens before each of `places` [P]: at most `limit` a place.

        Args:
            orders: values of n; of those with an occurrence the first counts, for each place on its own.
        Returns:
            Two arrays [M], a match in each entry: the number of its place, in ascending order, and the position after
            the occurrence, the latest of a place first.
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
