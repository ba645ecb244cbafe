"""Finds loops in a text: as a reader sees them, and exact ones, where tokens equal those one period before."""

from collections.abc import Iterator, Sequence

import numpy as np

_PHRASE = 6  # tokens that come back word for word
_TIMES = 3  # what stands there twice is no loop yet
_CHANGED = 2  # tokens between two such phrases that may differ from round to round: a counter, a name
_PASSAGE = 14  # tokens: what comes back in shorter pieces is a form with new content, such as a table or a list


def loop_share(tokens: Sequence[int], period: int) -> float:
    """Return the share of the text that lies in loops, as a reader sees them: a token, a line or several lines that
    come back three times and more, word for word or with a name or a counter changed.

    A phrase of 6 tokens loops where it stands 3 times, each at most `period` tokens behind the one before. Phrases that
    overlap, or have 2 tokens between them at most, make a passage; passages of 14 tokens and more count, in all their
    rounds. Between two changes 6 tokens have to stay. Time is linear in the number of tokens, whatever the period.

    These numbers, with `measurement.repetition_period` and `repetition_share`, find the most loops in one half of the
    outputs of `tests/text/labelled_outputs.jsonl.gz`, of those that flag at most one in twenty-five of the others there
    and one in fifty stretches of text that people wrote; the test of this module has the shares of the other half.
    """
    starts: dict[tuple[int, ...], list[int]] = {}  # of a phrase: where it stands, without a gap beyond the period
    looping = np.zeros(len(tokens), dtype=bool)
    for start in range(len(tokens) - _PHRASE + 1):
        phrase = tuple(tokens[start : start + _PHRASE])
        earlier = starts.get(phrase, [])
        if earlier and start - earlier[-1] > period:
            earlier = []
        starts[phrase] = seen = [*earlier[-(_TIMES - 1) :], start]
        if len(seen) == _TIMES:
            for place in seen:
                looping[place : place + _PHRASE] = True
    places = np.flatnonzero(looping)
    passages = np.split(places, np.flatnonzero(np.diff(places) > _CHANGED + 1) + 1)
    lengths = [int(passage[-1] - passage[0]) + 1 for passage in passages if len(passage)]
    return sum(length for length in lengths if length >= _PASSAGE) / max(len(tokens), 1)


def repeated_share(tokens: Sequence[int], period_max: int) -> float:
    """Return the largest share of the text that lies in one exact loop of at most `period_max` tokens, from its second
    round on: a run of positions that equal the token one period earlier, at least one period long.
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
