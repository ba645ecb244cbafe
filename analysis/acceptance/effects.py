"""Sizes of the effects that the tests of `iid` detect: one parameter each, with its prompt-bootstrap interval.

Rounds of one prompt are dependent, so a p-value that takes rounds as the unit is read beside these. All but the two
correlations rho are ratios of sums; the correlations are refitted in a few hundred replicates.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ..comparisons import LEVEL
from ..intervals import ANY, FEWEST, POSITIVE, SHARE, Columns, Interval, Range, bootstrap, interval_of
from ..rounds import prompt_sums
from .estimates import depth_sums
from .iid import accepted_sequences
from .models import beta_counts, followers, refitted

DIFFERENCE = Range(-1.0, 1.0)  # of two shares, and a correlation
MEANING = {
    "depth": "acceptance at depth 2 and beyond, less that at depth 1",
    "trend": "change of acceptance per depth",
    "mixing": "correlation rho within a round (beta-geometric)",
    "prompts": "design effect: variance of alpha over that of independent tests",
    "prompts_beta": "correlation rho within a prompt (prompt beta)",
    "memory": "correlation of neighbouring rounds of a prompt",
    "previous_round": "alpha after a full round, less alpha after another",
    "same_alpha": "alpha at the largest gamma, less that at the smallest",
    "implementation": "tokens per round over the replay's",
}


def ratio_effects(rounds: pd.DataFrame, replicates: int = 2000, seed: int = 0) -> dict[str, Interval]:
    """Estimate the effects that are ratios of sums, for the rounds of one gamma (see MEANING).

    They are depth, trend, prompts, memory and previous_round; NaN where a denominator is 0.
    """
    table = prompt_sums(rounds)[["accepted", "tested"]]
    depths = range(1, int(rounds["offered"].max()) + 1)
    later = followers(rounds)
    counts = {"accepted": later["accepted"], "tested": later["accepted"] + later["rejected"]}
    previous = pd.DataFrame(
        {f"full_{name}": count * later["after_full"] for name, count in counts.items()}
        | {f"other_{name}": count * ~later["after_full"] for name, count in counts.items()}
    )
    table = table.assign(
        kk=table["accepted"] ** 2, kn=table["accepted"] * table["tested"], nn=table["tested"] ** 2, one=1.0
    )
    lines = []  # lag-1 products of accepted counts, their mean over permutations, and sums of squares
    for prompt, accepted in accepted_sequences(rounds):
        if len(accepted) > 1:
            deviation = accepted - accepted.mean()
            squares = float(deviation @ deviation)
            lines.append((prompt, float(deviation[1:] @ deviation[:-1]), -squares / len(accepted), squares))
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
    return bootstrap(table.astype(float), values, replicates, seed, ranges=ranges)


def correlations(rounds: pd.DataFrame, refits: int = 200, seed: int = 0) -> dict[str, Interval]:
    """Estimate rho of the beta-geometric model (mixing) and of the prompt beta (prompts_beta).

    Their intervals come from fits to resampled prompts.
    """
    sums, (of_round, _) = prompt_sums(rounds), pd.factorize(rounds["prompt"], sort=True)
    return {
        "mixing": _correlation(beta_counts(rounds, of_round, len(sums)), refits, seed),
        "prompts_beta": _correlation(beta_counts(sums, np.arange(len(sums)), len(sums)), refits, seed),
    }


def _correlation(counts: np.ndarray, refits: int, seed: int) -> Interval:
    """Estimate rho from the `beta_counts` [P, 3, J] of prompts, whose sums are all that a fit needs."""
    prompts = len(counts)
    refits = refits if prompts >= FEWEST else 0
    drawn = np.random.default_rng(seed).multinomial(prompts, np.full(prompts, 1 / prompts), refits)
    weights = np.concatenate([np.ones((1, prompts)), drawn])
    m, rho = refitted(np.tensordot(weights, counts, 1)).T
    return Interval.of_replicates(rho, prompts, SHARE, LEVEL) if 0 < m[0] < 1 else Interval(np.nan, prompts=prompts)


def alpha_difference(by_gamma: Mapping[int, pd.DataFrame], replicates: int = 2000, seed: int = 0) -> Interval:
    """Estimate alpha at the largest gamma less alpha at the smallest, over prompts that all gammas have.

    by_gamma: accepted and tested positions by prompt (index), for each gamma.
    """
    parts = [each[["accepted", "tested"]].add_suffix(f"_{gamma}") for gamma, each in by_gamma.items()]
    table = pd.concat(parts, axis=1, join="inner")

    def difference(sums: Columns) -> np.ndarray:
        gammas = max(by_gamma), min(by_gamma)
        alphas = [sums[f"accepted_{gamma}"] / sums[f"tested_{gamma}"] for gamma in gammas]
        return alphas[0] - alphas[1]

    return interval_of(table, difference, DIFFERENCE, replicates, seed)


def replay_ratio(rounds: pd.DataFrame, replay: pd.DataFrame, replicates: int = 2000, seed: int = 0) -> Interval:
    """Estimate measured tokens per round over the replay's along the same texts."""
    table = prompt_sums(rounds)[["tokens", "rounds"]]
    table = table.join(replay.groupby("prompt")[["tokens", "rounds"]].sum().add_prefix("replay_"))
    return interval_of(
        table,
        lambda s: s["tokens"] / s["rounds"] / (s["replay_tokens"] / s["replay_rounds"]),
        POSITIVE,
        replicates,
        seed,
    )
