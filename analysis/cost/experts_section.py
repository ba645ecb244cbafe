"""Shows the experts that the verifications of a mixture chose, beside those of independent tokens (theory.md 7.6)."""

from collections.abc import Mapping, Sequence
from math import nan

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from .call_cost import relative_fit


def experts_table(experts: pd.DataFrame, timed: Mapping[int, float]) -> pd.DataFrame:
    """Return a line for each number of tokens n of a call: means over its calls.

    Args:
        experts: as `Run.experts` reads it.
        timed: n -> calibrated t(n) / t(1), for the n that were timed.
    """
    sums = experts.groupby("tokens")[["calls", "experts", "independent", "uniform", "reads"]].sum()
    means = sums.div(sums["calls"], axis=0)
    return pd.DataFrame(
        {
            "tokens n": sums.index,
            "calls": sums["calls"].to_numpy(),
            "experts a layer": means["experts"].to_numpy(),
            "if tokens were independent": means["independent"].to_numpy(),
            "and experts equally likely": means["uniform"].to_numpy(),
            "weights read, over n = 1": means["reads"].to_numpy(),
            "t(n) / t(1)": [timed.get(int(n), nan) for n in sums.index],
        }
    )


def predicted_calls(rows: ArrayLike, reads: ArrayLike, seconds: ArrayLike, known: Sequence[int]) -> np.ndarray:
    """Return the seconds [N] of calls on several tokens of a mixture, by the cost model fitted on a few of them:
    t(n) = a r(n) + b n, of reading and computing one after the other, as on a CPU (theory.md 7.2 and 7.6), with a and b
    of at least 0 by least squares of relative residuals. Its fixed seconds are left out: two calls tell two numbers.
    ValueError if fewer than two of the calls are on a `known` number of tokens.

    Args:
        rows: [N] tokens n of each call.
        reads: [N] bytes of weights r(n) that it reads, in any unit: those of the distinct experts that its tokens chose
            or are expected to choose, and the rest.
        seconds: [N] timed, of which only those at `known` are looked at.
        known: the n of two or more calls that the coefficients are fitted on.
    """
    seen = np.isin(rows, known)
    if seen.sum() < 2:
        raise ValueError(f"calls on {list(known)} tokens tell no two coefficients: give the n of two calls")
    columns = np.stack([reads, rows]).astype(float)
    return relative_fit(np.asarray(seconds, dtype=float)[seen], columns[:, seen])[1] @ columns


def experts_in_words(experts: pd.DataFrame) -> str:
    """Say how many experts a verification of several tokens chose, and what that is of the weights."""
    several = experts[experts["tokens"] > 1]
    if several.empty:
        return "The target is a mixture of experts, and no draft token was ever verified."
    sums = several[["calls", "experts", "independent", "uniform", "reads"]].sum()
    chosen, independent, uniform, reads = sums.iloc[1:] / sums["calls"]
    tokens = (several["tokens"] * several["calls"]).sum() / sums["calls"]
    return (
        f"The target is a mixture of experts: a verification of several tokens, {tokens:.2f} in the mean, chose "
        f"{chosen:.2f} distinct experts in a layer, where as many independent tokens would choose {independent:.2f} by "
        f"the texts' own chances and {uniform:.2f} by equal ones. It read {reads:.2f} times the weights of a call on "
        "one token, which is the account's factor `experts`."
    )
