"""Estimates of acceptance from censored rounds (THEORY 5): alpha, its errors, hazards by depth, Kaplan-Meier.

A round that ends without an observed rejection (every draft accepted, or cut by the end token or the limit)
is right-censored at its accepted count. Without a tested position the estimates are NaN.
"""

from dataclasses import dataclass
from math import nan, sqrt

import numpy as np
import pandas as pd
from scipy import stats

from specdec.theory.capped_geometric import tokens_per_round_slope
from specdec.theory.dependence import product_identity

from ..rounds import prompt_sums


@dataclass(frozen=True)
class AlphaEstimate:
    """Censored maximum likelihood of alpha under i.i.d. acceptance, with the Wilson interval on (K, K + R).

    The error and the interval take all tested positions as independent; see `robust_error` and the prompt
    bootstrap.
    """

    alpha: float
    se: float
    ci_low: float
    ci_high: float
    accepted: int  # K
    rejected: int  # R


def estimate_alpha(rounds: pd.DataFrame, level: float = 0.95) -> AlphaEstimate:
    """K / (K + R) with se sqrt(alpha (1 - alpha) / (K + R)): right for any cap and any stopping rule of
    THEORY 5.
    """
    accepted, rejected = int(rounds["accepted"].sum()), int(rounds["rejected"].sum())
    tested = accepted + rejected
    if tested == 0:
        return AlphaEstimate(nan, nan, nan, nan, 0, 0)
    alpha = accepted / tested
    wilson = stats.binomtest(accepted, tested).proportion_ci(confidence_level=level, method="wilson")
    se = sqrt(alpha * (1 - alpha) / tested)
    return AlphaEstimate(alpha, se, float(wilson.low), float(wilson.high), accepted, rejected)


def omega_error(estimate: AlphaEstimate, gamma: int) -> float:
    """Standard error of Omega(alpha, gamma) in tokens, by the delta method: Omega'(alpha) se."""
    return float(tokens_per_round_slope(estimate.alpha, gamma) * estimate.se)


@dataclass(frozen=True)
class RobustError:
    """Standard error of alpha allowing any dependence within a prompt; its square over the naive one."""

    se: float
    design_effect: float
    prompts: int


def robust_error(rounds: pd.DataFrame) -> RobustError:
    """var = P / (P - 1) sum_p u_p^2 / (K + R)^2 with u_p = K_p - alpha (K_p + R_p). NaN for fewer than two
    prompts.
    """
    sums = prompt_sums(rounds)
    sums = sums[sums["tested"] > 0]
    prompts = len(sums)
    if prompts < 2:
        return RobustError(nan, nan, prompts)
    naive = estimate_alpha(rounds)
    u = sums["accepted"] - naive.alpha * sums["tested"]
    se = sqrt(prompts / (prompts - 1) * float((u**2).sum())) / float(sums["tested"].sum())
    return RobustError(se, (se / naive.se) ** 2 if naive.se > 0 else nan, prompts)


def hazards(rounds: pd.DataFrame) -> pd.DataFrame:
    """One row per depth k = 1 ... deepest offered: at_risk n_k, rejected r_k, acceptance h_k = 1 - r_k / n_k.

    n_k = #{s + d >= k}, r_k = #{s = k - 1, d = 1}; `acceptance` is NaN where nothing was tested. Index:
    depth.
    """
    deepest = int(rounds["offered"].max()) if len(rounds) else 0
    s, d = rounds["accepted"].to_numpy(dtype=np.int64), rounds["rejected"].to_numpy(dtype=np.int64)
    reached = np.bincount(s + d, minlength=deepest + 1)
    at_risk = reached[::-1].cumsum()[::-1][1:]
    rejected = np.bincount(s[d == 1], minlength=deepest)[:deepest]
    accepted_share = 1 - np.divide(rejected, at_risk, out=np.full(deepest, nan), where=at_risk > 0)
    depth = pd.RangeIndex(1, deepest + 1, name="depth")
    return pd.DataFrame({"at_risk": at_risk, "rejected": rejected, "acceptance": accepted_share}, index=depth)


def kaplan_meier_tokens(table: pd.DataFrame) -> float:
    """Tokens per round 1 + sum_k prod_{j<=k} h_j of a `hazards` table, as if every round offered all its
    depths.

    Depths that no round reached add nothing, so the figure is a lower bound if they could have been reached.
    """
    return float(product_identity(table["acceptance"].fillna(0.0)))


def position_tokens(rounds: pd.DataFrame, table: pd.DataFrame) -> float:
    """Mean over rounds of 1 + sum_{k<=gamma_i} prod_{j<=k} h_j: the position model adjusted for what was
    offered.
    """
    survival = np.cumprod(table["acceptance"].fillna(0.0).to_numpy())
    by_offer = np.concatenate(([1.0], 1 + np.cumsum(survival)))  # tokens of a round that offers 0, 1, ...
    return float(by_offer[rounds["offered"].to_numpy(dtype=np.int64)].mean())
