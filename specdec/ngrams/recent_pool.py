"""A pool of n-grams by their first token, which forgets those that were not seen for the longest time."""

from collections.abc import Sequence


class RecentPool:
    """Keeps, for each first token, the continuations that were seen last (the n-gram pool of Lookahead decoding, Fu et
    al. 2402.02057, section 3.2).
    """

    def __init__(self, most: int) -> None:
        """
        Args:
            most: continuations kept for each first token.
        """
        self._most = most
        self._latest: dict[int, dict[tuple[int, ...], None]] = {}  # in the order in which they were seen

    def add(self, first: int, continuation: Sequence[int]) -> None:
        """Take note of an n-gram. One that is known becomes the latest; the oldest goes where there are too many."""
        known, seen = self._latest.setdefault(first, {}), tuple(continuation)
        known.pop(seen, None)
        known[seen] = None
        if len(known) > self._most:
            del known[next(iter(known))]

    def after(self, first: int) -> list[tuple[int, ...]]:
        """Return the continuations of `first`, latest first."""
        return list(reversed(self._latest.get(first, {})))
