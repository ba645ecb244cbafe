"""Outputs that fall into repetition: small models loop, and loops flatter every drafter that copies."""

from collections.abc import Sequence

import numpy as np


def repeated_share(tokens: Sequence[int], period_max: int) -> float:
    """The largest share of the text that lies in one loop of at most `period_max` tokens (0 for no loop).

    A loop counts from its second round on: a run of positions that equal the token one period earlier, at least one
    period long.
    """
    text = np.asarray(tokens)
    longest = 0
    for period in range(1, min(period_max, len(text) // 2) + 1):
        same = text[period:] == text[:-period]
        breaks = np.flatnonzero(np.concatenate(([True], ~same, [True])))
        run = int(np.diff(breaks).max()) - 1
        if run >= period:
            longest = max(longest, run)
    return longest / len(text) if len(text) else 0.0
