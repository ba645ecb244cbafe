"""Finds loops in a text: stretches in which every token equals the one a fixed number of places, the period, before."""

from collections.abc import Iterator, Sequence

import numpy as np


def repeated_share(tokens: Sequence[int], period_max: int) -> float:
    """Return the largest share of the text that lies in one loop of at most `period_max` tokens, 0 without a loop.

    A loop counts from its second round on: a run of positions that equal the token one period earlier, at least one
    period long.
    """
    longest = max((end - start for period, start, end in _runs(tokens, period_max) if end - start >= period), default=0)
    return longest / len(tokens) if len(tokens) else 0.0


def loop_marks(tokens: Sequence[int], period_max: int, least: int) -> np.ndarray:
    """Mark the tokens of a text that go on with a loop of at most `period_max` tokens, [T] bool.

    What stands there twice is no loop yet: a run of positions that equal the token one period earlier has to be two
    periods long, and `least` tokens, and is marked from its second period on, the third round of the text.
    """
    marks = np.zeros(len(tokens), dtype=bool)
    for period, start, end in _runs(tokens, period_max):
        if end - start >= max(2 * period, least):
            marks[start + period : end] = True
    return marks


def _runs(tokens: Sequence[int], period_max: int) -> Iterator[tuple[int, int, int]]:
    """Yield period, start and end of each longest run of positions that equal the token one period earlier."""
    text = np.asarray(tokens)
    for period in range(1, min(period_max, len(text) // 2) + 1):
        same = text[period:] == text[:-period]
        breaks = np.flatnonzero(np.concatenate(([True], ~same, [True])))  # a run lies between two of them
        for place in np.flatnonzero(np.diff(breaks) > 1):
            yield period, period + int(breaks[place]), period + int(breaks[place + 1]) - 1
