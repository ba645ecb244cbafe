"""Chi-square tests of draws whose laws are known and may change from draw to draw, and what they would have seen.

Numbers only: nothing here knows a target or a round.
"""

from dataclasses import dataclass
from math import nan, sqrt

import numpy as np
from scipy import optimize, stats

LEAST = 5.0
"""The smallest expected count of a cell, and the smallest variance of its count; rarer cells are pooled."""


class Tally:
    """Counts draws in cells [C] beside what their laws expect. The covariance [C, C] of the counts is the sum of
    diag(law) - law law^T over the draws, given what came before each. Of `impossible` draws, which have no chance under
    their law, one is enough.
    """

    def __init__(self, cells: int) -> None:
        self.observed, self.expected = np.zeros(cells), np.zeros(cells)
        self.covariance = np.zeros((cells, cells))
        self.impossible = 0

    @property
    def draws(self) -> int:
        return int(self.observed.sum())

    def add(self, law: np.ndarray, counts: np.ndarray) -> None:
        """Add draws from one law [C] by their counts [C]."""
        law = law / law.sum()
        number = counts.sum()
        self.observed += counts
        self.expected += number * law
        self.covariance += number * (np.diag(law) - np.outer(law, law))

    def add_one(self, law: np.ndarray, cell: int, impossible: bool = False) -> None:
        """Add one draw from a law [C]."""
        counts = np.zeros(len(law))
        counts[cell] = 1
        self.add(law, counts)
        self.impossible += impossible


@dataclass(frozen=True)
class Tested:
    """A test of what was drawn. Freedom 0 of the chi-square statistic says that the draws were too few, or the laws too
    sure, for a test; `p_value` is the chance of such a statistic, or a larger one, under the laws.
    """

    name: str
    draws: int
    statistic: float
    freedom: int
    p_value: float

    def detectable(self, level: float, power: float = 0.9) -> float:
        """Return a total variation that this test finds with the given power at a level: any shift of the mean law over
        its cells that is at least as large is found at least as surely. NaN where there was no test.

        A shift d of the cells' mean law makes the statistic noncentral by at least draws * sum d^2 / law, which is
        smallest, 4 draws TV^2, for a shift between halves of the law.
        """
        if not self.freedom:
            return nan
        bound = stats.chi2.isf(level, self.freedom)

        def missing(noncentrality: float) -> float:
            return float(stats.ncx2.sf(bound, self.freedom, noncentrality) - power)

        needed = optimize.brentq(missing, 1e-6, 10 * bound + 100)
        return min(1.0, sqrt(needed / (4 * self.draws)))


def chi_square(name: str, tally: Tally) -> Tested:
    """Test the counts of a tally: (O - E)^T C^+ (O - E) with the covariance C of the counts; this is Pearson's sum of
    (O - E)^2 / E where all draws have one law.

    Rare cells are pooled until each has an expected count and a variance of at least `LEAST`, where that is possible:
    by what is expected, never by what was seen, so that pooling biases nothing.
    """

    def size(cells: list[int]) -> float:
        return float(min(tally.expected[cells].sum(), tally.covariance[np.ix_(cells, cells)].sum()))

    groups = sorted(([cell] for cell in range(len(tally.expected))), key=size)
    while len(groups) > 1 and size(groups[0]) < LEAST:
        groups = sorted([groups[0] + groups[1], *groups[2:]], key=size)
    merge = np.zeros((len(groups), len(tally.expected)))
    for row, cells in enumerate(groups):
        merge[row, cells] = 1.0
    excess = merge @ (tally.observed - tally.expected)
    values, vectors = np.linalg.eigh(merge @ tally.covariance @ merge.T)
    kept = values > 1e-9 * max(values.max(initial=0.0), 1e-300)
    freedom = int(kept.sum()) if len(groups) > 1 else 0
    if tally.impossible:
        return Tested(name, tally.draws, float("inf"), max(1, freedom), 0.0)
    if not freedom:
        return Tested(name, tally.draws, 0.0, 0, 1.0)
    statistic = float(((vectors.T @ excess)[kept] ** 2 / values[kept]).sum())
    return Tested(name, tally.draws, statistic, freedom, float(stats.chi2.sf(statistic, freedom)))
