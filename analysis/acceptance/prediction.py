"""Prediction on prompts that no model has seen: fit on half of them, predict tokens per round on the other half.

Every model is fitted at the largest gamma, where rounds reach all depths, and predicts every gamma. Texts of the
held-out lengths are then written round by round, so that their ends are in the prediction as they are in the
measurement. The halves swap, and errors are over all prompts. A fitted model knows nothing about the held-out prompts
but the lengths of their texts; replay has no parameters and reads the held-out texts themselves.

How many tokens a drafter offers is part of the fit: shares of rounds by tokens offered, taken as independent of
acceptance. For drafters that stay silent when they do not know, such as n-gram tables, that is an approximation.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan

import numpy as np
import pandas as pd

from ..intervals import bootstrap, percentile_bounds
from ..rounds import GENERATION, by_gamma, distinct_generations, drafted, in_order, prompt_sums, shared_work
from .laws import LAWS, expected_rounds, offer_chances

LABELS = {
    "capped_geometric.text": "capped geometric, alpha of the text",
    "capped_geometric.mle": "capped geometric, alpha MLE at the largest gamma",
    "capped_geometric.short": "capped geometric, alpha MLE at the smallest gamma",
    "position": "by position",
    "beta_geometric": "rounds differ (beta-geometric)",
    "prompt_beta": "prompts differ (prompt beta)",
    "markov": "Markov along the text",
    "replay": "replay of the held-out texts",
}
ROUNDING = 1e-9  # errors below are equality: an exact replay misses by rounding alone
FEW_PROMPTS = 4  # with fewer no half can be resampled


class Undetermined(ValueError):
    """Raised where the prompts are too few or too alike for any model to be fitted."""


@dataclass(frozen=True)
class HeldOutPrediction:
    """Predicted and measured tokens per round, and the errors of every model on prompts that it was not fitted on.

    Attributes:
        table: model, gamma, predicted, measured, ci_low, ci_high (of the measured, prompt bootstrap), error (predicted
            over measured, less 1), error_low, error_high (prompts resampled in both halves and every model refitted).
        models: one row per model, best first: mean_error (of absolute values, over gammas), worst_error,
            worst_gamma, significant (number of gammas whose interval of the error leaves out 0).
        left_out: model -> why it was not tried.
    """

    table: pd.DataFrame
    models: pd.DataFrame
    left_out: dict[str, str]
    fit_gamma: int
    prompts: int
    level: float
    refits: int


def predict(
    rounds: pd.DataFrame,
    alpha_sums: pd.DataFrame | None = None,
    replay: pd.DataFrame | None = None,
    seed: int = 0,
    replicates: int = 2000,
    refits: int = 200,
    level: float = 0.95,
) -> HeldOutPrediction:
    """Return the errors of every model on prompts that it was not fitted on.

    Args:
        rounds: of one drafter at one or more gammas; the baseline's lines only restrict the prompts.
        alpha_sums: prompt, numerator, denominator of `alpha.text`; None or empty where the run has none.
        replay: gamma, prompt, tokens, expected rounds along the baseline's texts; likewise.
        replicates: bootstrap replicates of the measured intervals.
        refits: replicates of the intervals of the errors, with every model refitted in each.

    Raises:
        Undetermined: no model can be fitted on both halves; the message is a clause.
        ValueError: options are out of range.
    """
    if replicates < 1 or refits < 0 or not 0 < level < 1:
        raise ValueError(f"replicates, refits and level are {replicates}, {refits} and {level}")
    reason = _unpredictable(rounds)
    if reason:
        raise Undetermined(reason)
    alpha_sums = None if alpha_sums is None or alpha_sums.empty else alpha_sums
    replay = None if replay is None or replay.empty else replay
    arms = by_gamma(shared_work(rounds))
    prompts = sorted(arms[max(arms)]["prompt"].unique())
    largest, smallest = max(arms), min(arms)
    fitted = distinct_generations(arms[largest])
    order = np.random.default_rng(seed).permutation(len(prompts))
    side = np.zeros(len(prompts), dtype=int)
    side[order[: len(prompts) // 2]] = 1
    # [1 + B, P]; the first row is the data.
    weights = _weights(side, refits if len(prompts) >= FEW_PROMPTS else 0, seed)
    data = _counts(fitted, distinct_generations(arms[smallest]), alpha_sums, prompts, largest)
    tried, left_out = _models(data, smallest < largest, alpha_sums, replay, arms)
    texts = {gamma: _texts(arm, prompts) for gamma, arm in arms.items()}
    expected: dict[tuple[str, int], np.ndarray] = {}  # [1 + B, P] rounds of each prompt's texts
    for half in (0, 1):
        sums = {name: (weights * (side != half)) @ table for name, table in data.items()}
        offers = offer_chances(sums)
        held_out = np.flatnonzero(side == half)
        for name in (name for name in tried if name in LAWS):
            law = LAWS[name](sums)
            for gamma in arms:
                into = expected.setdefault((name, gamma), np.zeros(weights.shape))
                per_length = expected_rounds(law, offers, gamma, int(texts[gamma].lengths.max()))
                into[:, held_out] = texts[gamma].rounds(per_length)[:, held_out]
    lines = []
    for gamma, arm in arms.items():
        counts = prompt_sums(arm)[["tokens", "rounds"]]
        measured = bootstrap(counts, lambda s: {"tau": s["tokens"] / s["rounds"]}, replicates, seed, level)["tau"]
        tokens, taken = texts[gamma].tokens, counts["rounds"].reindex(prompts).to_numpy()
        with np.errstate(divide="ignore", invalid="ignore"):
            tau = (weights @ tokens) / (weights @ taken)
            for name in tried:
                if name == "replay":
                    assert replay is not None
                    predicted = _replayed(replay, gamma, prompts, weights)
                else:
                    predicted = (weights @ tokens) / (weights * expected[name, gamma]).sum(axis=1)
                error = predicted / tau - 1
                low, high = percentile_bounds(error[1:], level) if len(error) > 1 else (nan, nan)
                bounds = (measured.estimate, measured.low, measured.high)
                lines.append((name, gamma, float(predicted[0]), *bounds, float(error[0]), low, high))
    columns = ["model", "gamma", "predicted", "measured", "ci_low", "ci_high", "error", "error_low", "error_high"]
    table = pd.DataFrame(lines, columns=columns)
    # Few prompts may hold no round of the kind that a parameter is estimated from, in one half or both.
    for name in table.loc[table["error"].isna(), "model"].unique():
        left_out[str(name)] = "a half of the prompts does not determine it"
    table = table[~table["model"].isin(list(left_out))].reset_index(drop=True)
    if table.empty:
        raise Undetermined("no model is determined by half of the prompts; decode more of them")
    return HeldOutPrediction(table, _summary(table), left_out, largest, len(prompts), level, len(weights) - 1)


def _unpredictable(rounds: pd.DataFrame) -> str:
    """Return why `predict` cannot work on these rounds, as a clause; empty if it can."""
    speculative = drafted(rounds)
    if speculative.empty:
        return "there is no round of a drafter"
    if speculative["method"].nunique() != 1 or speculative["cell"].nunique() != 1:
        return "the rounds are of several drafters or cells, and one is expected"
    arms = by_gamma(shared_work(rounds))
    largest = arms[max(arms)]
    prompts = largest["prompt"].unique()
    if len(prompts) < 2:
        return "one prompt cannot be split into two halves"
    if not (largest["accepted"] + largest["rejected"]).any():
        return "no draft token was tested at the largest gamma, so no model can be fitted"
    return ""


def _weights(side: np.ndarray, refits: int, seed: int) -> np.ndarray:
    """Return how often each prompt counts, [1 + B, P]: once in the data, as drawn in its half in a replicate."""
    generator = np.random.default_rng([seed, 1])
    weights = np.ones((1 + refits, len(side)))
    for half in (0, 1):
        members = np.flatnonzero(side == half)
        weights[1:, members] = generator.multinomial(len(members), np.full(len(members), 1 / len(members)), refits)
    return weights


# Counts per prompt --------------------------------------------------------------------------------


def _counts(
    fitted: pd.DataFrame, shortest: pd.DataFrame, alpha_sums: pd.DataFrame | None, prompts: list[str], gamma: int
) -> dict[str, np.ndarray]:
    """Return all that models are fitted to, as tables [P, ...]; a replicate has their weighted sums over prompts."""
    ordered = in_order(fitted)
    row = pd.Index(prompts).get_indexer(ordered["prompt"])
    s, d = (ordered[name].to_numpy(dtype=np.int64) for name in ("accepted", "rejected"))
    depth = np.arange(1, gamma + 1)

    def per_prompt(values: np.ndarray) -> np.ndarray:
        table = np.zeros((len(prompts), *values.shape[1:]))
        np.add.at(table, row, values)
        return table

    # A draft is shortened to the tokens that may still follow: how many a round would have offered is censored there.
    room = np.minimum(ordered["tokens_left"].to_numpy() - 1, gamma)[:, None] >= depth
    offered = ordered["offered"].to_numpy()[:, None]
    after_rejection = ordered.groupby(GENERATION)["rejected"].shift(1, fill_value=False).to_numpy(dtype=bool)
    first = after_rejection & (s + d > 0)
    accepted, rejected = per_prompt(s[:, None])[:, 0], per_prompt(d[:, None])[:, 0]
    units = np.stack([accepted, rejected, accepted + rejected]).astype(np.int64)
    beyond = np.arange(int(units.max()))
    short = shortest.groupby("prompt")[["accepted", "rejected"]].sum().reindex(prompts)
    counts = {
        "at_risk": per_prompt(s[:, None] + d[:, None] >= depth),
        "rejected": per_prompt((s[:, None] == depth - 1) & (d[:, None] == 1)),
        "could_offer": per_prompt(room & (offered >= depth - 1)),
        "offered": per_prompt(room & (offered >= depth)),
        "first": per_prompt(np.stack([first & (s > 0), first], axis=1)),
        "units": (units.transpose(1, 0)[:, :, None] > beyond).astype(float),  # [P, 3, J] of the prompt beta
        "short": np.stack([short["accepted"], short["accepted"] + short["rejected"]], axis=1).astype(float),
    }
    counts["units"] = counts["units"].reshape(len(prompts), -1)
    if alpha_sums is not None:
        sums = alpha_sums.groupby("prompt")[["numerator", "denominator"]].sum().reindex(prompts).fillna(0.0)
        counts["text"] = sums.to_numpy(dtype=float)
    return counts


def _models(
    data: Mapping[str, np.ndarray],
    has_short: bool,
    alpha_sums: pd.DataFrame | None,
    replay: pd.DataFrame | None,
    arms: Mapping[int, pd.DataFrame],
) -> tuple[list[str], dict[str, str]]:
    """Return the models to try, and why each other one is left out."""
    left_out = {}
    if alpha_sums is None or not data["text"][:, 1].any():
        left_out["capped_geometric.text"] = "the run has no sums of alpha.text per prompt"
    if not has_short:
        left_out["capped_geometric.short"] = "the run has one gamma"
    if not data["first"][:, 1].any() or data["at_risk"].shape[1] < 2:
        left_out["markov"] = "no round that follows a rejection was tested at two depths"
    if replay is None or not set(arms) <= set(replay["gamma"]):
        left_out["replay"] = "the run has no replay of the baseline's texts"
    return [name for name in LABELS if name not in left_out], left_out


@dataclass(frozen=True)
class _Texts:
    """The texts of one gamma: prompt (position) and length of each; tokens by prompt."""

    owner: np.ndarray
    lengths: np.ndarray
    tokens: np.ndarray

    def rounds(self, per_length: np.ndarray) -> np.ndarray:
        """Return the expected rounds of each prompt's texts [B, P] from those of a text of each length [B, N + 1]."""
        table = np.zeros((len(per_length), len(self.tokens)))
        np.add.at(table.T, self.owner, per_length[:, self.lengths].T)
        return table


def _texts(arm: pd.DataFrame, prompts: list[str]) -> _Texts:
    lengths = arm.groupby(GENERATION)["committed"].sum()
    owner = pd.Index(prompts).get_indexer(lengths.index.get_level_values("prompt"))
    sizes = lengths.to_numpy(dtype=np.int64)
    return _Texts(owner, sizes, np.bincount(owner, sizes, len(prompts)))


def _replayed(replay: pd.DataFrame, gamma: int, prompts: list[str], weights: np.ndarray) -> np.ndarray:
    """Return tokens over rounds of the replay, [1 + B]. ValueError if it lacks a prompt."""
    sums = replay[replay["gamma"] == gamma].groupby("prompt")[["tokens", "rounds"]].sum().reindex(prompts)
    if sums.isna().to_numpy().any():
        raise ValueError(f"the replay at gamma {gamma} lacks prompts that the rounds table has")
    totals = weights @ sums.to_numpy(dtype=float)
    return np.asarray(totals[:, 0] / totals[:, 1])


def _summary(table: pd.DataFrame) -> pd.DataFrame:
    """Return a line per model, best first (see `HeldOutPrediction.models`)."""
    lines = []
    for name, part in table.groupby("model", sort=False):
        worst = part.loc[part["error"].abs().idxmax()]
        outside = (part["error_low"] > ROUNDING) | (part["error_high"] < -ROUNDING)
        lines.append((name, part["error"].abs().mean(), worst["error"], int(worst["gamma"]), int(outside.sum())))
    columns = ["model", "mean_error", "worst_error", "worst_gamma", "significant"]
    return pd.DataFrame(lines, columns=columns).sort_values("mean_error", kind="stable", ignore_index=True)
