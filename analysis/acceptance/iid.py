"""Tests of the i.i.d. capped-geometric model, one behind each iid/* metric (theory.md 6.1 has each statistic and its
law), and the sizes of the effects that they detect: one parameter each, with its prompt-bootstrap interval.

Tests take rounds as the unit. Real rounds of one prompt are dependent, and differences between prompts alone make the
depth and mixing tests reject; read them together with the prompt and memory tests and with the sizes. Repeats that are
copies must be removed first (`rounds.distinct_generations`). A test that does not apply has p_value NaN and says why.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import nan

import numpy as np
import pandas as pd
from scipy import stats

from ..intervals import ANY, FEWEST, SHARE, Columns, Interval, Range, bootstrap, interval_of, resampled_sums
from ..rounds import GENERATION, in_order, numbered, prompt_sums
from . import estimates
from .estimates import AlphaEstimate, depth_sums, estimate_alpha, hazards

MANY_PAIRS = 20_000  # of neighbouring rounds, beyond which permutations are not drawn
PERMUTED = 2_000_000  # rounds in the permutations that are held at once
DIFFERENCE = Range(-1.0, 1.0)  # of two shares, and a correlation


@dataclass(frozen=True)
class IidTest:
    """The result of one test; n counts the units that it compares (positions, rounds, prompts or pairs of rounds)."""

    statistic: float
    p_value: float
    n: int
    reason: str = ""  # why the test does not apply, else empty


def depth(rounds: pd.DataFrame) -> IidTest:
    """Test whether acceptance varies with depth in any way, by the likelihood ratio of the position model."""
    fit = estimates.position(rounds)
    return _likelihood_ratio(fit, rounds, "" if len(fit.parameters) > 1 else "only one depth was tested")


def trend(rounds: pd.DataFrame) -> IidTest:
    """Test whether acceptance rises or falls with depth: score test, N(0, 1), two-sided; positive if it rises."""
    estimate, reason = _tested(rounds)
    table, alpha = hazards(rounds), estimate.alpha
    if reason or (table["at_risk"] > 0).sum() < 2:
        return IidTest(nan, nan, estimate.tested, reason or "only one depth was tested")
    k, n = table.index.to_numpy(dtype=float), table["at_risk"].to_numpy(dtype=float)
    score = (k * (n - table["rejected"].to_numpy() - n * alpha)).sum()
    spread = (n * k**2).sum() - (n * k).sum() ** 2 / n.sum()
    z = float(score / np.sqrt(alpha * (1 - alpha) * spread))
    return IidTest(z, float(2 * stats.norm.sf(abs(z))), estimate.tested)


def mixing(rounds: pd.DataFrame) -> IidTest:
    """Test whether rounds differ in alpha; an effect of depth makes it reject as well."""
    lacking = "no round offered two tokens" if rounds["offered"].max() < 2 else ""
    n = int((rounds["offered"] > 0).sum())
    return _likelihood_ratio(estimates.beta_geometric(rounds), rounds, lacking, n, boundary=True)


def prompts(rounds: pd.DataFrame) -> IidTest:
    """Test whether prompts differ in alpha by Pearson's statistic, chi-squared with P - 1 degrees."""
    sums = prompt_sums(rounds)
    sums = sums[sums["tested"] > 0]
    estimate, reason = _tested(rounds)
    if reason or len(sums) < 2:
        return IidTest(nan, nan, len(sums), reason or "only one prompt has tested positions")
    alpha = estimate.alpha
    excess = (sums["accepted"] - alpha * sums["tested"]) ** 2 / (sums["tested"] * alpha * (1 - alpha))
    statistic = float(excess.sum())
    return IidTest(statistic, float(stats.chi2.sf(statistic, len(sums) - 1)), len(sums))


def prompts_beta(rounds: pd.DataFrame) -> IidTest:
    """Test whether prompts differ in alpha by the likelihood ratio of the prompt-beta model."""
    n = int((prompt_sums(rounds)["tested"] > 0).sum())
    lacking = "only one prompt has tested positions" if n < 2 else ""
    return _likelihood_ratio(estimates.prompt_beta(rounds), rounds, lacking, n, boundary=True)


def previous_round(rounds: pd.DataFrame) -> IidTest:
    """Test whether alpha is the same after full and other rounds; differences between prompts make it reject too.
    Likelihood ratio of the Markov model over the rounds that follow another.
    """
    later = estimates.followers(rounds)
    fit = estimates.markov(later)
    compared = not np.isnan([*fit.parameters.values()]).any()
    return _likelihood_ratio(fit, later, "" if compared else "no round follows a full round, or all of them do")


def memory(rounds: pd.DataFrame, permutations: int = 1999, seed: int = 0) -> IidTest:
    """Test whether neighbouring rounds resemble each other, by permuting rounds within their generation; n counts the
    pairs.

    The statistic is the sum over generations of sum_i (s_i - mean)(s_{i+1} - mean), two-sided around its exact mean
    over permutations. From `MANY_PAIRS` pairs on, the law over permutations is taken to be normal with its exact mean
    and variance (Wald and Wolfowitz 1943) instead of being drawn. Cut rounds are left out, and so are those without a
    proposal: they would show when the drafter is silent, and not how acceptance behaves.
    """
    sequences = [deviation for _, deviation in deviations(rounds)]
    pairs = sum(map(len, sequences)) - len(sequences)
    observed = sum(float(deviation[1:] @ deviation[:-1]) for deviation in sequences)
    mean = -sum(float(deviation @ deviation) / len(deviation) for deviation in sequences)
    if not any(deviation.any() for deviation in sequences):
        return IidTest(nan, nan, pairs, "no generation has two rounds that differ in accepted tokens")
    if pairs >= MANY_PAIRS:
        z = abs(observed - mean) / np.sqrt(sum(map(_permutation_variance, sequences)))
        return IidTest(observed, float(2 * stats.norm.sf(z)), pairs)
    generator, permuted = np.random.default_rng(seed), np.zeros(permutations)
    for deviation in sequences:
        at_once = max(1, PERMUTED // len(deviation))
        for start in range(0, permutations, at_once):
            copies = np.tile(deviation, (min(at_once, permutations - start), 1))
            shuffled = generator.permuted(copies, axis=1, out=copies)
            permuted[start : start + at_once] += np.einsum("pi,pi->p", shuffled[:, 1:], shuffled[:, :-1])
    return replace(_resampling_test(abs(observed - mean), np.abs(permuted - mean), pairs), statistic=observed)


def _permutation_variance(deviation: np.ndarray) -> float:
    """Return the variance of sum_i d_i d_{i+1} over permutations of n values d with mean 0.

    With S_2 and S_4 the sums of squares and of fourth powers, the mean of the square is
    (S_2^2 - S_4) / n + (S_2^2 - 2 S_4) / (n (n - 1)), and the mean is -S_2 / n.
    """
    n = len(deviation)
    squares, fourths = float((deviation**2).sum()), float((deviation**4).sum())
    return (squares**2 - fourths) / n + (squares**2 - 2 * fourths) / (n * (n - 1)) - (squares / n) ** 2


def deviations(rounds: pd.DataFrame) -> list[tuple[str, np.ndarray]]:
    """Return the prompt and, in order, the accepted counts less their mean of each generation with more than one round
    that had a proposal and was not cut.
    """
    ordered = in_order(rounds)
    ordered = ordered[(ordered["offered"] > 0) & (ordered["truncation"] == "")]
    if ordered.empty:
        return []
    accepted = ordered["accepted"].to_numpy(dtype=float)
    begins = np.flatnonzero(np.diff(numbered(ordered, GENERATION), prepend=-1))
    prompts = ordered["prompt"].iloc[begins]
    sequences = zip(map(str, prompts), np.split(accepted, begins[1:]), strict=True)
    return [(prompt, counts - counts.mean()) for prompt, counts in sequences if len(counts) > 1]


def same_alpha(by_gamma: Mapping[int, pd.DataFrame], replicates: int = 2000, seed: int = 0) -> tuple[IidTest, Interval]:
    """Test whether gammas have the same alpha on the same prompts: the range of alpha over gammas, prompt bootstrap.
    The size of the effect is alpha at the largest gamma less alpha at the smallest.

    The null law is that of the resampled deviations from the estimates, because gammas share prompts and often texts.
    Acceptance that varies with depth makes it reject, and so do differences between prompts, which weigh differently at
    each gamma. by_gamma: accepted and tested positions by prompt (index); n counts the prompts that every gamma has.
    """
    parts = [each[["accepted", "tested"]].add_suffix(f"_{gamma}") for gamma, each in by_gamma.items()]
    table = pd.concat(parts, axis=1, join="inner")
    n, reason = len(table), ""
    if len(by_gamma) < 2:
        reason = "there is one gamma only"
    elif n < 2:
        reason = "fewer than two prompts have all gammas"
    elif not table.filter(like="tested_").any().all():
        reason = "no position was tested at one of the gammas"
    if reason:
        return IidTest(nan, nan, n, reason), Interval(nan)

    def alphas(sums: Columns) -> np.ndarray:  # [gammas, ...], from the smallest gamma on
        return np.array([sums[f"accepted_{gamma}"] / sums[f"tested_{gamma}"] for gamma in sorted(by_gamma)])

    observed, drawn = alphas(table.sum()), resampled_sums(table.to_numpy(dtype=float), replicates, seed)
    with np.errstate(divide="ignore", invalid="ignore"):
        deviation = alphas(dict(zip(table, drawn.T, strict=True))) - observed[:, None]
    test = _resampling_test(float(np.ptp(observed)), np.ptp(deviation, axis=0), n)
    return test, interval_of(table, lambda sums: alphas(sums)[-1] - alphas(sums)[0], DIFFERENCE, replicates)


def implementation(
    rounds: pd.DataFrame, replay: pd.DataFrame, replicates: int = 2000, seed: int = 0
) -> tuple[IidTest, Interval]:
    """Test whether a run takes the rounds that its replay expects: measured tokens per round over the replay's, which
    is the size of the effect and the statistic; n counts prompts. ValueError if the replay lacks one of them.

    rounds: one gamma; replay: prompt, tokens, expected rounds along the same texts. Prompt bootstrap of the
    logarithm's deviation around 0. Few prompts make it a little too eager: at 5% it rejects 6.4% under its null with 40
    prompts, 5.1% with 100.
    """
    table = prompt_sums(rounds)[["tokens", "rounds"]]
    table = table.join(replay.groupby("prompt")[["tokens", "rounds"]].sum().add_prefix("replay_"))
    if table.isna().to_numpy().any():
        raise ValueError(f"the replay lacks prompts, the first is {table.index[table.isna().any(axis=1)][0]!r}")

    def ratio(sums: Columns) -> np.ndarray:
        return sums["tokens"] / sums["rounds"] / (sums["replay_tokens"] / sums["replay_rounds"])

    size, n = interval_of(table, ratio, replicates=replicates), len(table)
    if n < 2:
        return IidTest(nan, nan, n, "one prompt cannot be resampled"), size
    drawn = dict(zip(table, resampled_sums(table.to_numpy(), replicates, seed).T, strict=True))
    deviation = np.abs(np.log(ratio(drawn) / size.estimate))
    test = _resampling_test(float(np.abs(np.log(size.estimate))), deviation, n)
    return replace(test, statistic=size.estimate), size


def _resampling_test(observed: float, null: np.ndarray, n: int) -> IidTest:
    """Return the share of replicates as extreme as the observation, which counts as one of them."""
    defined = null[np.isfinite(null)]
    extreme = int((defined >= observed - 1e-9).sum())  # equal values may differ by rounding
    return IidTest(observed, (1 + extreme) / (1 + len(defined)), n)


def iid_tests(rounds: pd.DataFrame, permutations: int = 1999, seed: int = 0) -> dict[str, IidTest]:
    """Run the tests behind iid/depth_p, iid/trend_p, iid/mixing_p, iid/prompts_p and iid/memory_p."""
    return {
        "depth": depth(rounds),
        "trend": trend(rounds),
        "mixing": mixing(rounds),
        "prompts": prompts(rounds),
        "memory": memory(rounds, permutations, seed),
    }


def _tested(rounds: pd.DataFrame) -> tuple[AlphaEstimate, str]:
    """Return the estimate of alpha, and the reason why it is not inside (0, 1), if it is not."""
    estimate = estimate_alpha(rounds)
    if estimate.tested == 0:
        return estimate, "no position was tested"
    if estimate.rejected == 0:
        return estimate, "no rejection was observed"
    return estimate, "no draft token was accepted" if estimate.accepted == 0 else ""


def _likelihood_ratio(
    fit: estimates.ModelFit, rounds: pd.DataFrame, lacking: str, n: int | None = None, boundary: bool = False
) -> IidTest:
    """Test a fit against the capped geometric, unless something is `lacking`. On its `boundary` a parameter makes half
    of the null law 0 (Self and Liang 1987). n: None for the tested positions.
    """
    estimate, reason = _tested(rounds)
    n = estimate.tested if n is None else n
    if reason or lacking:
        return IidTest(nan, nan, n, reason or lacking)
    ratio = max(0.0, 2 * (fit.log_likelihood - estimates.capped_geometric(rounds).log_likelihood))
    p_value = float(stats.chi2.sf(ratio, len(fit.parameters) - 1))
    if boundary:
        p_value = 0.5 * p_value if ratio > 0 else 1.0
    return IidTest(ratio, p_value, n)


def ratio_effects(rounds: pd.DataFrame, replicates: int) -> dict[str, Interval]:
    """Estimate the effects that are ratios of sums, for the rounds of one gamma: depth, trend, prompts, memory and
    previous_round; NaN where a denominator is 0.
    """
    table = prompt_sums(rounds)[["accepted", "tested"]]
    depths = range(1, int(rounds["offered"].max()) + 1)
    later = estimates.followers(rounds)
    counts = {"accepted": later["accepted"], "tested": later["accepted"] + later["rejected"]}
    previous = pd.DataFrame(
        {f"full_{name}": count * later["after_full"] for name, count in counts.items()}
        | {f"other_{name}": count * ~later["after_full"] for name, count in counts.items()}
    )
    k, n = table["accepted"], table["tested"]
    table = table.assign(kk=k**2, kn=k * n, nn=n**2, one=1.0)
    lines = []  # lag-1 products of accepted counts, their mean over permutations, and sums of squares
    for prompt, deviation in deviations(rounds):
        squares = float(deviation @ deviation)
        lines.append((prompt, float(deviation[1:] @ deviation[:-1]), -squares / len(deviation), squares))
    lags = pd.DataFrame(lines, columns=["prompt", "lag", "lag_mean", "squares"]).groupby("prompt").sum()
    table = table.join(depth_sums(rounds, depths)).join(lags).join(previous.groupby(later["prompt"]).sum()).fillna(0.0)

    def values(sums: Columns) -> Mapping[str, np.ndarray]:
        alpha = sums["accepted"] / sums["tested"]
        first, deeper_n = 1 - sums["r_1"] / sums["n_1"], sums["tested"] - sums["n_1"]
        deeper = 1 - (sums["tested"] - sums["accepted"] - sums["r_1"]) / deeper_n
        n, k_n = sum(sums[f"n_{k}"] for k in depths), sum(k * sums[f"n_{k}"] for k in depths)
        score = sum(k * (sums[f"n_{k}"] * (1 - alpha) - sums[f"r_{k}"]) for k in depths)
        spread = sum(k**2 * sums[f"n_{k}"] for k in depths) - k_n**2 / n
        residual = sums["kk"] - 2 * alpha * sums["kn"] + alpha**2 * sums["nn"]
        robust = sums["one"] / (sums["one"] - 1) * residual / sums["tested"] ** 2
        return {
            "depth": deeper - first,
            "trend": score / spread,
            "prompts": robust / (alpha * (1 - alpha) / sums["tested"]),
            # Less its mean over permutations, it could pass 1 by as much as that.
            "memory": np.clip((sums["lag"] - sums["lag_mean"]) / sums["squares"], -1, 1),
            "previous_round": sums["full_accepted"] / sums["full_tested"]
            - sums["other_accepted"] / sums["other_tested"],
        }

    ranges = {**dict.fromkeys(("depth", "memory", "previous_round"), DIFFERENCE), "trend": ANY}
    return bootstrap(table.astype(float), values, replicates, ranges=ranges)


def correlations(rounds: pd.DataFrame, refits: int) -> dict[str, Interval]:
    """Estimate rho of the beta-geometric model (mixing) and of the prompt beta (prompts_beta).
    Their intervals come from fits to resampled prompts, whose counts add up to all that a fit needs.
    """
    sums, (of_round, _) = prompt_sums(rounds), pd.factorize(rounds["prompt"], sort=True)
    prompts = len(sums)
    refits = refits if prompts >= FEWEST else 0
    drawn = np.random.default_rng(0).multinomial(prompts, np.full(prompts, 1 / prompts), refits)
    weights = np.concatenate([np.ones((1, prompts)), drawn])
    found = {}
    for name, units, prompt in (("mixing", rounds, of_round), ("prompts_beta", sums, np.arange(prompts))):
        m, rho = estimates.refitted(np.tensordot(weights, estimates.beta_counts(units, prompt, prompts), 1)).T
        known = 0 < m[0] < 1
        found[name] = Interval.of_replicates(rho, prompts, SHARE) if known else Interval(np.nan, prompts=prompts)
    return found
