"""Prediction as a discipline: fit on half of the prompts, predict tokens per round for every gamma on the other half.

Every model is fitted at the largest gamma, where rounds reach all depths, and says what a round of each gamma would
do; texts of the held-out lengths are then written round by round (THEORY 2, finite output), so that their ends are in
the prediction as they are in the measurement. The halves swap, and errors are over all prompts. Of the held-out prompts
a fitted model knows the lengths of the texts alone; replay has no parameters and reads the held-out texts themselves.

How many tokens a drafter offers is part of the fit: shares of rounds by tokens offered, taken as independent of
acceptance. For drafters that stay silent when they do not know, such as n-gram tables, that is an approximation.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import nan

import numpy as np
import pandas as pd

from ..intervals import Interval, bootstrap, percentile_bounds
from ..rounds import GENERATION, distinct_generations, drafted, in_order, shared_work
from .models import fit_beta

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
NODES = 12  # of the quadrature over a prompt's alpha: exact for polynomials of degree 23
EXACT = 512  # tokens of a text that are written one by one; expected rounds grow linearly beyond
ROUNDING = 1e-9  # errors below are equality: an exact replay misses by rounding alone
FEW_PROMPTS = 4  # with fewer no half can be resampled


@dataclass(frozen=True)
class Law:
    """What a model says about rounds, for B replicates of its fit.

    Attributes:
        acceptance: [B, Q, S, G] chance that the draft at depth k is accepted if reached, for each of Q types of
            prompts, in a round after one that saw a rejection (first of S) or not (last); S may be 1.
        weight: [B, Q] share of prompts of each type.
    """

    acceptance: np.ndarray
    weight: np.ndarray


class Undetermined(ValueError):
    """The prompts are too few or too alike for any model."""


@dataclass(frozen=True)
class Prediction:
    """What came of it.

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
) -> Prediction:
    """Errors of every model on prompts that it was not fitted on.

    Args:
        rounds: of one drafter at one or more gammas; the baseline's rows only restrict the prompts.
        alpha_sums: prompt, numerator, denominator of `alpha.text`; None or empty where the run has none.
        replay: gamma, prompt, tokens, rounds (V_1) along texts that need no speculation, the baseline's; likewise.
        replicates, refits: of the measured intervals, and of the intervals of the errors.

    Raises:
        Undetermined: no model can be fitted on both halves.
        ValueError: where `unpredictable` has a reason, or for options out of range.
    """
    if replicates < 1 or refits < 0 or not 0 < level < 1:
        raise ValueError(f"replicates, refits and level are {replicates}, {refits} and {level}")
    reason = unpredictable(rounds)
    if reason:
        raise ValueError(reason)
    alpha_sums = None if alpha_sums is None or alpha_sums.empty else alpha_sums
    replay = None if replay is None or replay.empty else replay
    arms = _arms(rounds)
    prompts = sorted(arms[max(arms)]["prompt"].unique())
    largest, smallest = max(arms), min(arms)
    fitted = distinct_generations(arms[largest])
    order = np.random.default_rng(seed).permutation(len(prompts))
    side = np.zeros(len(prompts), dtype=int)
    side[order[: len(prompts) // 2]] = 1
    weights = _weights(
        side, refits if len(prompts) >= FEW_PROMPTS else 0, seed
    )  # [1 + B, P]; the first row is the data
    data = _counts(fitted, distinct_generations(arms[smallest]), alpha_sums, prompts, largest)
    tried, left_out = _models(data, smallest < largest, alpha_sums, replay, arms)
    texts = {gamma: _texts(arm, prompts) for gamma, arm in arms.items()}
    expected: dict[tuple[str, int], np.ndarray] = {}  # [1 + B, P] rounds of each prompt's texts
    for half in (0, 1):
        sums = {name: (weights * (side != half)) @ table for name, table in data.items()}
        offers = _offers(sums)
        held_out = np.flatnonzero(side == half)
        for name in tried:
            if name == "replay":
                continue
            law = _LAWS[name](sums)
            for gamma in arms:
                into = expected.setdefault((name, gamma), np.zeros(weights.shape))
                per_length = expected_rounds(law, offers, gamma, int(texts[gamma].lengths.max()))
                into[:, held_out] = texts[gamma].rounds(per_length)[:, held_out]
    rows = []
    for gamma, arm in arms.items():
        measured = _measured(arm, replicates, seed, level)
        tokens, taken = texts[gamma].tokens, arm.groupby("prompt").size().reindex(prompts).to_numpy(float)
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
                rows.append((name, gamma, float(predicted[0]), *measured, float(error[0]), low, high))
    columns = ["model", "gamma", "predicted", "measured", "ci_low", "ci_high", "error", "error_low", "error_high"]
    table = pd.DataFrame(rows, columns=columns)
    # Few prompts may hold no round of the kind that a parameter is estimated from, in one half or both.
    for name in table.loc[table["error"].isna(), "model"].unique():
        left_out[str(name)] = "a half of the prompts does not determine it"
    table = table[~table["model"].isin(list(left_out))].reset_index(drop=True)
    if table.empty:
        raise Undetermined("no model is determined by half of the prompts; decode more of them")
    return Prediction(table, _summary(table), left_out, largest, len(prompts), level, len(weights) - 1)


def unpredictable(rounds: pd.DataFrame) -> str:
    """Why `predict` cannot work on these rounds, as a clause; empty if it can."""
    speculative = drafted(rounds)
    if speculative.empty:
        return "there is no round of a drafter"
    if speculative["method"].nunique() != 1 or speculative["cell"].nunique() != 1:
        return "the rounds are of several drafters or cells, and one is expected"
    arms = _arms(rounds)
    largest = arms[max(arms)]
    prompts = largest["prompt"].unique()
    if len(prompts) < 2:
        return "one prompt cannot be split into two halves"
    if not (largest["accepted"] + largest["rejected"]).any():
        return "no draft token was tested at the largest gamma, so no model can be fitted"
    return ""


def _arms(rounds: pd.DataFrame) -> dict[int, pd.DataFrame]:
    """The drafter's rounds by gamma, over the work that all methods and gammas have done."""
    shared = shared_work(rounds)
    speculative = drafted(shared)
    return {int(gamma): arm for gamma, arm in speculative.groupby("gamma", sort=True)}


def _weights(side: np.ndarray, refits: int, seed: int) -> np.ndarray:
    """[1 + B, P] how often each prompt counts: once in the data, as drawn within its own half in a replicate."""
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
    """Everything that models are fitted to, as tables [P, ...] whose weighted sums over prompts are a replicate's."""
    ordered = in_order(fitted)
    row = pd.Index(prompts).get_indexer(ordered["prompt"])
    s = ordered["accepted"].to_numpy(dtype=np.int64)
    d = ordered["rejected"].to_numpy(dtype=np.int64)
    depth = np.arange(1, gamma + 1)

    def per_prompt(values: np.ndarray) -> np.ndarray:
        table = np.zeros((len(prompts), *values.shape[1:]))
        np.add.at(table, row, values)
        return table

    # A draft cannot be longer than the tokens left behind it: what a round would have offered is censored there.
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
        """[B, P] expected rounds of each prompt's texts from those of a text of each length [B, N + 1]."""
        table = np.zeros((len(per_length), len(self.tokens)))
        np.add.at(table.T, self.owner, per_length[:, self.lengths].T)
        return table


def _texts(arm: pd.DataFrame, prompts: list[str]) -> _Texts:
    lengths = arm.groupby(GENERATION)["committed"].sum()
    owner = pd.Index(prompts).get_indexer(lengths.index.get_level_values("prompt"))
    sizes = lengths.to_numpy(dtype=np.int64)
    return _Texts(owner, sizes, np.bincount(owner, sizes, len(prompts)))


# Laws ---------------------------------------------------------------------------------------------

_Sums = Mapping[str, np.ndarray]  # weighted sums [B, ...] by name of the counts


def _ratio(pairs: np.ndarray) -> np.ndarray:
    """[B] first over second column; NaN where nothing was counted."""
    return np.divide(pairs[:, 0], pairs[:, 1], out=np.full(len(pairs), nan), where=pairs[:, 1] > 0)


def _constant(alpha: np.ndarray, sums: _Sums) -> Law:
    depth = sums["at_risk"].shape[1]
    return Law(np.broadcast_to(alpha[:, None, None, None], (len(alpha), 1, 1, depth)), np.ones((len(alpha), 1)))


def _capped_text(sums: _Sums) -> Law:
    return _constant(np.clip(_ratio(sums["text"]), 0, 1), sums)


def _capped_mle(sums: _Sums) -> Law:
    tested = sums["at_risk"].sum(axis=1)
    return _constant(_ratio(np.stack([tested - sums["rejected"].sum(axis=1), tested], axis=1)), sums)


def _capped_short(sums: _Sums) -> Law:
    return _constant(_ratio(sums["short"]), sums)


def _position(sums: _Sums) -> Law:
    """A depth that no round reached is taken as never accepted."""
    passed = sums["at_risk"] - sums["rejected"]
    h = np.divide(passed, sums["at_risk"], out=np.zeros_like(passed), where=sums["at_risk"] > 0)
    return Law(h[:, None, None, :], np.ones((len(h), 1)))


def _refitted(*terms: np.ndarray) -> np.ndarray:
    """[B, 2] m and rho of every row of the three terms [B, J]; the first row, the data, starts the others."""
    m, rho, _ = fit_beta(*(term[0] for term in terms))
    start = (min(max(m, 1e-6), 1 - 1e-6), max(rho, 1e-3))
    rest = [fit_beta(k, r, n, start)[:2] for k, r, n in zip(*(term[1:] for term in terms), strict=True)]
    return np.array([(m, rho), *rest])


def _beta_geometric(sums: _Sums) -> Law:
    rejected = sums["rejected"].sum(axis=1, keepdims=True)
    fits = _refitted(sums["at_risk"] - sums["rejected"], rejected, sums["at_risk"])
    m, rho = fits[:, :1], fits[:, 1:]
    j = np.arange(sums["at_risk"].shape[1])
    h = (m * (1 - rho) + j * rho) / (1 - rho + j * rho)
    return Law(h[:, None, None, :], np.ones((len(h), 1)))


def _prompt_beta(sums: _Sums) -> Law:
    """Types of prompts are the nodes of Gauss-Jacobi quadrature over the beta law."""
    accepted, rejected, tested = np.moveaxis(sums["units"].reshape(len(sums["units"]), 3, -1), 1, 0)
    fits = _refitted(accepted, rejected, tested)
    m, rho = (np.clip(fits[:, column], 1e-9, 1 - 1e-9) for column in (0, 1))
    size = (1 - rho) / rho
    nodes, weight = beta_quadrature(m * size, (1 - m) * size, NODES)
    depth = sums["at_risk"].shape[1]
    return Law(np.broadcast_to(nodes[:, :, None, None], (*nodes.shape, 1, depth)), weight)


def beta_quadrature(a: np.ndarray, b: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Jacobi nodes and weights [B, nodes] of the laws Beta(a, b), a and b [B] > 0; weights sum to 1.

    From the eigenvectors of the recurrence matrix (Golub and Welsch 1969), which stays finite where a and b are large.
    """
    p, q = (b - 1)[:, None], (a - 1)[:, None]  # the exponents on [-1, 1]
    n = np.arange(1, nodes)
    twice = 2 * n + p + q
    centre = np.concatenate([(q - p) / (p + q + 2), (q**2 - p**2) / (twice * (twice + 2))], axis=1)
    # (n + p + q) / (2n + p + q - 1) is 1 at n = 1, also where both are 0.
    shrink = np.where(n == 1, 1.0, (n + p + q) / np.where(n == 1, 1.0, twice - 1))
    square = 4 * n * (n + p) * (n + q) * shrink / (twice**2 * (twice + 1))
    matrix = np.zeros((len(a), nodes, nodes))
    matrix[:, np.arange(nodes), np.arange(nodes)] = centre
    matrix[:, n, n - 1] = np.sqrt(square)  # eigh reads the lower triangle
    values, vectors = np.linalg.eigh(matrix)
    return np.clip((1 + values) / 2, 0, 1), vectors[:, 0, :] ** 2


def _markov(sums: _Sums) -> Law:
    """Agreement along the text as a two-state chain (THEORY 4.6).

    a01 is the acceptance at depth 1 after a rejection, a11 that at deeper depths. A round without a rejection ends in a
    token that nobody drafted, so the draft after it agrees with a11^2 + (1 - a11) a01.
    """
    rise = _ratio(sums["first"])
    tested = sums["at_risk"][:, 1:].sum(axis=1)
    stay = _ratio(np.stack([tested - sums["rejected"][:, 1:].sum(axis=1), tested], axis=1))
    return markov_law(rise, stay, sums["at_risk"].shape[1])


def markov_law(a01: np.ndarray, a11: np.ndarray, depth: int) -> Law:
    """The law of rounds over a text whose agreement is that chain; a01, a11 [B]."""
    acceptance = np.broadcast_to(a11[:, None, None, None], (len(a11), 1, 2, depth)).copy()
    acceptance[:, 0, 0, 0] = a01
    acceptance[:, 0, 1, 0] = a11**2 + (1 - a11) * a01
    return Law(acceptance, np.ones((len(a11), 1)))


_LAWS: dict[str, Callable[[_Sums], Law]] = {
    "capped_geometric.text": _capped_text,
    "capped_geometric.mle": _capped_mle,
    "capped_geometric.short": _capped_short,
    "position": _position,
    "beta_geometric": _beta_geometric,
    "prompt_beta": _prompt_beta,
    "markov": _markov,
}


# From a law to rounds -----------------------------------------------------------------------------


def _offers(sums: _Sums) -> np.ndarray:
    """[B, G + 1] chance that a round with room for them offers at least 0, 1, ... G tokens (Kaplan-Meier).

    Where no text had room for so many tokens, the drafter is taken to offer them.
    """
    could, made = sums["could_offer"], sums["offered"]
    share = np.divide(made, could, out=np.ones_like(made), where=could > 0)
    return np.concatenate([np.ones((len(made), 1)), np.cumprod(share, axis=1)], axis=1)


def round_law(acceptance: np.ndarray, offers: np.ndarray, gamma: int) -> tuple[np.ndarray, np.ndarray]:
    """P(k accepted, then a rejection) and P(k accepted, all that was offered), [..., gamma + 1] each.

    acceptance: [..., G] by depth, G >= gamma; offers: [..., G + 1] chance to offer at least 0, 1, ... tokens.
    """
    passed = np.concatenate([np.ones((*acceptance.shape[:-1], 1)), np.cumprod(acceptance[..., :gamma], axis=-1)], -1)
    least = offers[..., : gamma + 1]
    longer = np.concatenate([least[..., 1:], np.zeros((*least.shape[:-1], 1))], axis=-1)
    exactly = least - longer
    refused = np.concatenate([1 - acceptance[..., :gamma], np.zeros((*acceptance.shape[:-1], 1))], axis=-1)
    return passed * refused * longer, passed * exactly


def expected_rounds(law: Law, offers: np.ndarray, gamma: int, tokens: int) -> np.ndarray:
    """[B, tokens + 1] expected rounds to write a text of 0, 1, ... tokens; offers [B, G + 1].

    R_z(n) = 1 + sum_k P_z(k, rejected) R_0(n-k-1) + P_z(k, all) R_1(n-k-1), where z = 0 after a rejection; a text
    starts as after a round without one. With one state and full offers this is THEORY 2's recursion. Beyond `EXACT`
    tokens the rounds are continued by their mean slope, from which they differ by less than a round.
    """
    rejected, whole = round_law(law.acceptance, offers[:, None, None, :], gamma)  # [B, Q, S, gamma + 1]
    replicates, types, states, _ = rejected.shape
    exact = min(tokens, EXACT)
    value = np.zeros((replicates, types, states, gamma + 1 + exact))  # R_z(n) at column n + gamma; zeros before
    for n in range(1, exact + 1):
        window = value[..., n - 1 : n + gamma][..., ::-1]  # R(n - 1), R(n - 2), ..., R(n - gamma - 1)
        after = rejected * window[:, :, :1] + whole * window[:, :, -1:]
        value[..., n + gamma] = 1 + after.sum(axis=-1)
    value[..., : gamma + 1] = 0.0
    rounds = np.einsum("bqn,bq->bn", value[:, :, -1, gamma:], law.weight)
    if tokens > exact:
        half = exact // 2
        slope = (rounds[:, exact] - rounds[:, half]) / (exact - half)
        beyond = np.arange(1, tokens - exact + 1)
        rounds = np.concatenate([rounds, rounds[:, exact:] + slope[:, None] * beyond], axis=1)
    return rounds


# Measurement and summary --------------------------------------------------------------------------


def _measured(arm: pd.DataFrame, replicates: int, seed: int, level: float) -> tuple[float, float, float]:
    sums = arm.groupby("prompt").agg(tokens=("committed", "sum"), rounds=("committed", "size")).astype(float)
    interval: Interval = bootstrap(sums, lambda s: {"tau": s["tokens"] / s["rounds"]}, replicates, seed, level)["tau"]
    return interval.estimate, interval.low, interval.high


def _replayed(replay: pd.DataFrame, gamma: int, prompts: list[str], weights: np.ndarray) -> np.ndarray:
    """[1 + B] tokens over rounds of the replay. ValueError if it lacks a prompt."""
    sums = replay[replay["gamma"] == gamma].groupby("prompt")[["tokens", "rounds"]].sum().reindex(prompts)
    if sums.isna().to_numpy().any():
        raise ValueError(f"the replay at gamma {gamma} lacks prompts that the rounds table has")
    totals = weights @ sums.to_numpy(dtype=float)
    return np.asarray(totals[:, 0] / totals[:, 1])


def _summary(table: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for name, part in table.groupby("model", sort=False):
        worst = part.loc[part["error"].abs().idxmax()]
        outside = (part["error_low"] > ROUNDING) | (part["error_high"] < -ROUNDING)
        rows.append((name, part["error"].abs().mean(), worst["error"], int(worst["gamma"]), int(outside.sum())))
    columns = ["model", "mean_error", "worst_error", "worst_gamma", "significant"]
    return pd.DataFrame(rows, columns=columns).sort_values("mean_error", kind="stable", ignore_index=True)


def prediction_in_words(prediction: Prediction) -> str:
    """Which model predicts best, and whether the capped geometric misses, by how much and in which direction."""
    best = prediction.models.iloc[0]
    tried = set(prediction.models["model"])
    model = "capped_geometric.text" if "capped_geometric.text" in tried else "capped_geometric.mle"
    capped = prediction.table[prediction.table["model"] == model]
    if capped.empty:
        model = str(best["model"])
        capped = prediction.table[prediction.table["model"] == model]
    gammas = f"{len(capped)} gammas" if len(capped) > 1 else "one gamma"
    start = (
        f"On prompts that it was not fitted on, the model “{LABELS[str(best['model'])]}” predicts tokens per round "
        f"best: off by {best['mean_error']:.1%} on average over {gammas} and by {best['worst_error']:+.1%} at worst "
        f"(gamma {best['worst_gamma']})."
    )
    worst = capped.loc[capped["error"].abs().idxmax()]
    size = f"{worst['error']:+.1%} at gamma {worst['gamma']:g}"
    subject = f"The model “{LABELS[model]}”"
    if not capped["error_low"].notna().any():
        return f"{start} {subject} is off by {size} at most; without intervals no miss can be called real."
    over, under = capped[capped["error_low"] > ROUNDING], capped[capped["error_high"] < -ROUNDING]
    if over.empty and under.empty:
        interval = f"{worst['error_low']:+.1%} to {worst['error_high']:+.1%}"
        return f"{start} {subject} does not miss significantly at any gamma (at most {size}, {interval})."
    sides = [
        f"{verb} significantly at gamma {', '.join(f'{gamma:g}' for gamma in part['gamma'])}"
        for verb, part in (("over-predicts", over), ("under-predicts", under))
        if len(part)
    ]
    return f"{start} {subject} {' and '.join(sides)}; its largest miss is {size}."
