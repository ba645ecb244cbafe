"""Estimates of acceptance from censored rounds (theory.md 5.1 to 5.3): alpha, its errors, hazards, Kaplan-Meier; and
models of the accepted counts, fitted by maximum likelihood and compared by AIC (5.4).

A round that ends without an observed rejection (every draft token accepted, or cut by the end token or the limit) is
right-censored at its accepted count. In the formulas s is the accepted count of a round and d is 1 if a rejection was
observed; K and R are their sums. Without a tested position the estimates are NaN. Models use only s and d;
log-likelihoods are in nats.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import nan, sqrt

import numpy as np
import pandas as pd
from scipy import optimize, stats
from scipy.special import xlog1py, xlogy

from specdec.theory.capped_geometric import product_identity, tokens_per_round_slope

from ..intervals import LEVEL, Interval
from ..rounds import in_order, numbered, prompt_sums


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
    """Estimate alpha by K / (K + R), with standard error sqrt(alpha (1 - alpha) / (K + R)), however rounds are capped
    or cut, if what ends them does not look at the next draft token (theory.md 5.2).
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
    """Return alpha's standard error under any dependence within a prompt, and the design effect: its square over that
    of the error under independence. The variance is P / (P - 1) sum_p u_p^2 / (K + R)^2, u_p = K_p - alpha (K_p + R_p),
    over P prompts with a tested position. NaN for fewer than two.
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


@dataclass(frozen=True)
class ModelFit:
    """A fitted model: its parameters by name and its log-likelihood in nats."""

    parameters: dict[str, float]
    log_likelihood: float


def capped_geometric(rounds: pd.DataFrame) -> ModelFit:
    """Fit one alpha for every tested position."""
    estimate = estimate_alpha(rounds)
    return ModelFit({"alpha": estimate.alpha}, _bernoulli(estimate.accepted, estimate.rejected))


def position(rounds: pd.DataFrame) -> ModelFit:
    """Fit a free acceptance h_k at every depth k that was tested."""
    table = hazards(rounds)
    table = table[table["at_risk"] > 0]
    log_likelihood = _bernoulli(table["at_risk"] - table["rejected"], table["rejected"])
    return ModelFit({f"h_{depth}": float(h) for depth, h in table["acceptance"].items()}, log_likelihood)


def beta_geometric(units: pd.DataFrame) -> ModelFit:
    """Fit a beta law of mean m and correlation rho, from which each unit, a round, draws its own alpha."""
    m, rho, log_likelihood = fit_beta(beta_counts(units, np.zeros(len(units), dtype=int), 1)[0])
    return ModelFit({"m": m, "rho": rho}, log_likelihood)


def prompt_beta(rounds: pd.DataFrame) -> ModelFit:
    """Fit a beta law of mean m and correlation rho, from which each prompt draws its own alpha."""
    return beta_geometric(prompt_sums(rounds))


def markov(later: pd.DataFrame) -> ModelFit:
    """Fit alpha_1 to rounds that follow a full round of their generation, alpha_0 to other `followers`."""
    after_full = later["after_full"].to_numpy(dtype=bool)
    after, other = estimate_alpha(later[after_full]), estimate_alpha(later[~after_full])
    log_likelihood = _bernoulli([other.accepted, after.accepted], [other.rejected, after.rejected])
    return ModelFit({"alpha_0": other.alpha, "alpha_1": after.alpha}, log_likelihood)


def followers(rounds: pd.DataFrame) -> pd.DataFrame:
    """Return the rounds that follow another of their generation; `after_full`: that one accepted all it offered."""
    ordered = in_order(rounds)
    full = (ordered["offered"] > 0) & (ordered["accepted"] == ordered["offered"])
    by_generation = full.groupby(numbered(ordered))
    return ordered.assign(after_full=by_generation.shift(1, fill_value=False))[by_generation.cumcount() > 0]


def compare_models(rounds: pd.DataFrame, ordered: bool = True) -> pd.DataFrame:
    """Return the fits, best AIC first: columns parameters (their number), log_likelihood, aic; index model.

    All are fitted to the rounds that follow another, the only ones that the Markov model describes, so that the
    likelihoods are of the same data; where their order is not known, all but that one are fitted to all rounds.
    """
    fitted = followers(rounds) if ordered else rounds
    models = (capped_geometric, position, beta_geometric, prompt_beta, *([markov] if ordered else []))
    fits = {model.__name__: model(fitted) for model in models}
    rows = [(len(fit.parameters), fit.log_likelihood) for fit in fits.values()]
    table = pd.DataFrame(rows, index=pd.Index(fits, name="model"), columns=["parameters", "log_likelihood"])
    return table.assign(aic=2 * table["parameters"] - 2 * table["log_likelihood"]).sort_values("aic")


def _bernoulli(accepted: object, rejected: object) -> float:
    """Return the maximised log-likelihood of independent groups; a group without counts adds nothing."""
    k, r = np.asarray(accepted, dtype=float), np.asarray(rejected, dtype=float)
    share = np.divide(k, k + r, out=np.zeros_like(k), where=k + r > 0)
    return float((xlogy(k, share) + xlog1py(r, -share)).sum())


def beta_counts(units: pd.DataFrame, group: np.ndarray, groups: int) -> np.ndarray:
    """Return the counts of `fit_beta` for each group of units, [groups, 3, J]; group: [U] of each unit, from 0."""
    k, r = (units[name].to_numpy(dtype=np.int64) for name in ("accepted", "rejected"))
    return np.stack([exceeding(counts, int((k + r).max(initial=0)), group, groups) for counts in (k, r, k + r)], axis=1)


def fit_beta(
    counts: np.ndarray, start: tuple[float, float] | None = None, at: np.ndarray | None = None
) -> tuple[float, float, float]:
    """Return m, rho and the log-likelihood at its maximum, from the number of units whose count exceeds j = 0, 1, ...

    The likelihood of a unit is prod_{j<s}[m(1-rho)+j rho] prod_{j<d}[(1-m)(1-rho)+j rho] / prod_{j<s+d}[1-rho+j rho].
    This product keeps its digits as rho -> 0, where differences of log beta functions lose all of them. `counts` [3, J]
    are `exceeding` of accepted, rejected and tested counts; they add up over units, so a bootstrap replicate is fitted
    from weighted sums. `start`: an (m, rho) nearby, such as the estimate that a replicate varies; it spares the search
    from several. `at`: the j of each place where neighbouring j are added up.
    """
    j = np.arange(counts.shape[1]) if at is None else at
    signed, slopes = counts * [[1], [1], [-1]], np.array([[1], [-1], [0]])  # slopes: of the means in m

    def negative(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        m, rho = parameters
        means = np.array([[m], [1 - m], [1]])
        factors = means * (1 - rho) + j * rho
        rises = signed / factors
        slope = [(rises * slopes).sum() * (1 - rho), (rises * (j - means)).sum()]
        return -float((signed * np.log(factors)).sum()), -np.array(slope)

    k, r = float(counts[0].sum()), float(counts[1].sum())
    mean = k / (k + r) if k + r else nan
    independent = _bernoulli(k, r)
    if k == 0 or r == 0:  # m is 0 or 1, and rho has no meaning
        return mean, 0.0, independent
    bounds = [(1e-9, 1 - 1e-9), (0.0, 1 - 1e-6)]
    starts = [(mean, rho) for rho in (0.01, 0.2, 0.6)]
    options = {"ftol": 1e-15, "gtol": 1e-10, "xtol": 1e-12, "maxfun": 2000}
    if start is not None:  # a replicate's spread is far wider than the last digits
        starts, options = [start], {"ftol": 1e-9, "gtol": 1e-6, "xtol": 1e-7, "maxfun": 100}
    search = partial(optimize.minimize, negative, jac=True, method="TNC", bounds=bounds, options=options)
    best = min(map(search, starts), key=lambda fit: float(fit.fun))
    if -best.fun <= independent + 1e-9:  # the maximum lies on the boundary rho = 0
        return mean, 0.0, independent
    return float(best.x[0]), float(best.x[1]), float(-best.fun)


def refitted(counts: np.ndarray, at: np.ndarray | None = None) -> np.ndarray:
    """Return [B, 2] m and rho of all `counts` [B, 3, J] of `fit_beta`; the first, the data's, start the others."""
    m, rho, _ = fit_beta(counts[0], None, at)
    start = (min(max(m, 1e-6), 1 - 1e-6), max(rho, 1e-3))
    return np.array([(m, rho), *(fit_beta(each, start, at)[:2] for each in counts[1:])])


def exceeding(counts: np.ndarray, most: int, group: np.ndarray, groups: int) -> np.ndarray:
    """Return by group [groups, most] how many of the counts [U] exceed 0, 1, ... most - 1; group: [U] of each."""
    histogram = np.bincount(group * (most + 1) + counts, minlength=groups * (most + 1)).reshape(groups, most + 1)
    return histogram[:, :0:-1].cumsum(axis=1)[:, ::-1].astype(float)
