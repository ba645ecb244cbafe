"""Estimates of acceptance from censored rounds (theory.md 5.1 to 5.3): alpha, its errors, hazards, Kaplan-Meier.

A round that ends without an observed rejection (every draft token accepted, or cut by the end token or the limit) is
right-censored at its accepted count. In the formulas s is the accepted count of a round and d is 1 if a rejection was
observed; K and R are their sums. Without a tested position the estimates are NaN.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan, sqrt

import numpy as np
import pandas as pd
from scipy import stats

from specdec.theory.capped_geometric import product_identity, tokens_per_round_slope

from ..intervals import LEVEL, Interval
from ..rounds import prompt_sums


@dataclass(frozen=True)
class AlphaEstimate:
    """The maximum-likelihood estimate of alpha from censored rounds under i.i.d. acceptance.

    The Wilson interval on (K, K + R) and the standard error take all tested positions as independent; `robust_error`
    and the prompt bootstrap do not.
    """

    wilson: Interval
    se: float
    accepted: int  # K
    rejected: int  # R

    @property
    def alpha(self) -> float:
        return self.wilson.estimate

    @property
    def tested(self) -> int:
        """Number of tested positions, K + R."""
        return self.accepted + self.rejected


def estimate_alpha(rounds: pd.DataFrame) -> AlphaEstimate:
    """Estimate alpha by K / (K + R), with standard error sqrt(alpha (1 - alpha) / (K + R)).

    This is right however rounds are capped or cut, if what ends them does not look at the next draft token
    (theory.md 5.2).
    """
    accepted, rejected = int(rounds["accepted"].sum()), int(rounds["rejected"].sum())
    tested = accepted + rejected
    if tested == 0:
        return AlphaEstimate(Interval(nan), nan, 0, 0)
    alpha = accepted / tested
    wilson = stats.binomtest(accepted, tested).proportion_ci(LEVEL, method="wilson")
    interval = Interval(alpha, float(wilson.low), float(wilson.high), prompts=rounds["prompt"].nunique())
    return AlphaEstimate(interval, sqrt(alpha * (1 - alpha) / tested), accepted, rejected)


def omega_error(estimate: AlphaEstimate, gamma: int) -> float:
    """Return the standard error of Omega(alpha, gamma) in tokens, by the delta method: Omega'(alpha) se."""
    return float(tokens_per_round_slope(estimate.alpha, gamma) * estimate.se)


def robust_error(rounds: pd.DataFrame) -> tuple[float, float]:
    """Return alpha's standard error under any dependence within a prompt, and the design effect.

    The design effect is the square of this error over the square of the error under independence.
    The variance is P / (P - 1) sum_p u_p^2 / (K + R)^2 with u_p = K_p - alpha (K_p + R_p) over P prompts with a tested
    position. NaN for fewer than two.
    """
    sums = prompt_sums(rounds)
    sums = sums[sums["tested"] > 0]
    prompts = len(sums)
    if prompts < 2:
        return nan, nan
    naive = estimate_alpha(rounds)
    u = sums["accepted"] - naive.alpha * sums["tested"]
    se = sqrt(prompts / (prompts - 1) * float((u**2).sum())) / float(sums["tested"].sum())
    return se, (se / naive.se) ** 2 if naive.se > 0 else nan


def hazards(rounds: pd.DataFrame) -> pd.DataFrame:
    """Return a table by depth k = 1 ... deepest offered (index): at_risk n_k, rejected r_k, acceptance 1 - r_k / n_k.

    n_k = #{s + d >= k}, r_k = #{s = k - 1, d = 1}; `acceptance` is NaN where nothing was tested.
    """
    deepest = int(rounds["offered"].max()) if len(rounds) else 0
    s, d = rounds["accepted"].to_numpy(dtype=np.int64), rounds["rejected"].to_numpy(dtype=np.int64)
    reached = np.bincount(s + d, minlength=deepest + 1)
    at_risk = reached[::-1].cumsum()[::-1][1:]
    rejected = np.bincount(s[d == 1], minlength=deepest)[:deepest]
    accepted_share = 1 - np.divide(rejected, at_risk, out=np.full(deepest, nan), where=at_risk > 0)
    depth = pd.RangeIndex(1, deepest + 1, name="depth")
    return pd.DataFrame({"at_risk": at_risk, "rejected": rejected, "acceptance": accepted_share}, index=depth)


def depth_sums(rounds: pd.DataFrame, depths: Sequence[int]) -> pd.DataFrame:
    """Return the counts of `hazards` as sums by prompt (index): columns n_k and r_k for each depth k."""
    s, d = rounds["accepted"], rounds["rejected"].astype(int)
    counts = {f"n_{k}": s + d >= k for k in depths} | {f"r_{k}": (s == k - 1) & (d == 1) for k in depths}
    return pd.DataFrame(counts).groupby(rounds["prompt"]).sum().astype(float)


def kaplan_meier_tokens(table: pd.DataFrame) -> float:
    """Return tokens per round, 1 + sum_k prod_{j<=k} h_j, as if every round offered all depths of a `hazards` table.

    A depth that no round reached adds nothing: where it could have been reached, the figure is a lower bound.
    """
    return float(product_identity(table["acceptance"].fillna(0.0)))
