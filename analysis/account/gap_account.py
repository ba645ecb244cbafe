"""The gap account (theory.md 8.1): eight factors that lead from the capped-geometric theory to the measured speedup.

Their product is the measured speedup for any data, because every factor is a ratio of neighbouring quantities. Prefill
does not count; seconds are those of the rounds table. The order of the factors is a convention; the split of a round's
time into verification v, drafting g and the rest o, each over t(1), does not depend on it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import nan, prod

import numpy as np
import pandas as pd

from specdec.theory.capped_geometric import tokens_per_round

from ..intervals import Columns, Interval, bootstrap
from ..rounds import counts_by_prompt, prompt_sums

FACTORS = ("omega", "offered", "dependence", "drift", "draft", "verify", "overhead", "baseline")
TIMES = ("g", "v", "o")
DERIVED = (
    "tokens_per_round",
    "formula",
    "priced",
    "acceptance",
    "loop",
    "tokens_error",
    "speedup_error",
)  # see `Account.intervals`


@dataclass(frozen=True)
class Account:
    """The factors in order (drift only with a replay), what they are made of, and an interval for each.

    Attributes:
        speedup: baseline seconds per token over speculative seconds per token.
        omega_bar: mean theory at what each round offered and had left.
        t_ar_s: seconds per token of the baseline.
        time: g, v and o, the draft, the verification and the rest of a round over t1; their sum is the round's time.
        alpha_of_text: True if alpha is the mean over positions of the text, False if it was fitted to the same rounds.
        intervals: of the factors, `speedup`, g, v, o, `tokens_per_round` and six more, from the same replicates, so
            that what is compared is paired. `formula`: the textbook formula's speedup, omega / (1 + g), which counts
            the drafts that were paid for. `priced`: the same tokens per round at measured costs of verification too,
            omega / (v + g). `acceptance`: tokens per round over omega, so that formula x verify = priced and
            priced x acceptance x loop = speedup. `loop`: overhead x baseline, as plain decoding runs the same loop.
            `tokens_error`, `speedup_error`: what the formula says over what was measured, less 1.
    """

    alpha: float
    gamma: int
    prompts: int
    speedup: float
    factors: dict[str, float]
    tokens_per_round: float
    omega_bar: float
    replay_tokens_per_round: float | None
    t1_s: float
    t_ar_s: float
    time: dict[str, float]
    intervals: dict[str, Interval]
    alpha_of_text: bool = True

    @property
    def product(self) -> float:
        """The product of the factors: equal to `speedup` up to rounding."""
        return prod(self.factors.values())


def shared_alpha(rounds: pd.DataFrame, text_sums: pd.DataFrame | None) -> tuple[float, pd.DataFrame | None]:
    """Return the one alpha behind every theory number of a run (`account/alpha`), and its sums by prompt.

    It comes from `text_sums` (prompt, numerator, denominator) if given, else it is the maximum-likelihood estimate from
    `rounds`, the distinct generations at the primary gamma. If no proposal was ever tested the answer is 0 and None.
    """
    sums = text_sums
    if sums is None:
        mle = prompt_sums(rounds)[["accepted", "tested"]].reset_index()
        sums = mle.rename(columns={"accepted": "numerator", "tested": "denominator"})
    tested = float(sums["denominator"].sum())
    return (0.0, None) if tested == 0 else (float(sums["numerator"].sum()) / tested, sums)


def account_table(
    speculative: pd.DataFrame,
    baseline_sums: pd.DataFrame,
    gamma: int,
    replay: pd.DataFrame | None = None,
    alpha_sums: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return all that the account needs as sums by prompt (index): resampling its lines resamples the account.

    cap_0 ... cap_gamma count rounds by the draft tokens that could have counted: those offered, but at most one less
    than the tokens left. `baseline_sums` are the `prompt_sums` of the baseline; `replay` has prompt, tokens and
    expected rounds along the same texts; `alpha_sums` has prompt, numerator, denominator. ValueError if the tables
    differ in their prompts or a round offered more than gamma.
    """
    if len(speculative) and speculative["offered"].max() > gamma:
        raise ValueError(f"a round offered {speculative['offered'].max()} tokens, more than gamma {gamma}")
    cap = np.minimum(speculative["offered"], speculative["tokens_left"] - 1)
    caps = counts_by_prompt(speculative, cap.to_numpy(dtype=np.int64), gamma + 1).add_prefix("cap_")
    table = prompt_sums(speculative)[["tokens", "rounds", "draft_s", "verify_s", "round_s"]].join(caps)
    parts = {"baseline": baseline_sums[["tokens", "round_s"]].add_prefix("baseline_")}
    if replay is not None:
        parts["replay"] = replay.groupby("prompt")[["tokens", "rounds"]].sum().add_prefix("replay_")
    if alpha_sums is not None:
        totals = alpha_sums.groupby("prompt")[["numerator", "denominator"]].sum().add_prefix("alpha_")
        table = table.join(totals).fillna(0.0)  # a prompt without a proposal has no positions to sum over
    for name, part in parts.items():
        lacking = table.index.difference(part.index)
        if len(lacking):
            raise ValueError(f"the {name} figures lack {len(lacking)} prompts, the first is {lacking[0]!r}")
        table = table.join(part)
    if set(table.index) != set(parts["baseline"].index):
        raise ValueError("the baseline covers prompts that the speculative rounds do not")
    return table.astype(float)


def account_values(sums: Columns, alpha: float, gamma: int, t1_s: float) -> dict[str, np.ndarray]:
    """Return all quantities of the account from sums: of the data (scalars), or of the replicates [B].

    alpha is taken from the columns alpha_numerator and alpha_denominator where the table has them, so that it varies
    with the prompts; else it is the argument.
    """
    chance = np.asarray(alpha)
    if "alpha_numerator" in sums:
        chance = np.clip(sums["alpha_numerator"] / sums["alpha_denominator"], 0, 1)  # rounding may pass 1
    # A replicate of prompts that gave no position has no alpha, and no theory.
    known = np.where(np.isfinite(chance), 1.0, nan)
    chance = np.nan_to_num(chance)
    omega = tokens_per_round(chance, gamma) * known
    per_cap = [sums[f"cap_{cap}"] * tokens_per_round(chance, cap) for cap in range(gamma + 1)]
    omega_bar = np.sum(per_cap, axis=0) / sums["rounds"] * known
    tau = sums["tokens"] / sums["rounds"]
    g = sums["draft_s"] / sums["rounds"] / t1_s
    v = sums["verify_s"] / sums["rounds"] / t1_s
    o = sums["round_s"] / sums["rounds"] / t1_s - g - v
    t_ar_s = sums["baseline_round_s"] / sums["baseline_tokens"]
    speedup, overhead = t_ar_s * sums["tokens"] / sums["round_s"], (v + g) / (v + g + o)
    if "replay_tokens" in sums:
        replayed = sums["replay_tokens"] / sums["replay_rounds"]
        acceptance = {"dependence": replayed / omega_bar, "drift": tau / replayed, "replay": replayed}
    else:
        acceptance = {"dependence": tau / omega_bar}
    return {
        "omega": omega,
        "offered": omega_bar / omega,
        **acceptance,
        "draft": 1 / (1 + g),
        "verify": (1 + g) / (v + g),
        "overhead": overhead,
        "baseline": t_ar_s / t1_s,
        "speedup": speedup,
        "tokens_per_round": tau,
        "omega_bar": omega_bar,
        "t_ar_s": t_ar_s,
        "g": g,
        "v": v,
        "o": o,
        "formula": omega / (1 + g),
        "priced": omega / (v + g),
        "acceptance": tau / omega,
        "loop": overhead * t_ar_s / t1_s,
        "tokens_error": omega / tau - 1,
        "speedup_error": omega / (1 + g) / speedup - 1,
    }


def gap_account(
    table: pd.DataFrame,
    alpha: float,
    gamma: int,
    t1_s: float,
    replicates: int = 10_000,
    seed: int = 0,
    alpha_of_text: bool = True,
) -> Account:
    """Return the account of the prompts in `table`, an `account_table` of a run or of a part of its prompts.

    Args:
        alpha: what the table's alpha sums give; without them it is held fixed in the intervals.
        t1_s: seconds of the target's call on one token.
        alpha_of_text: False if alpha was fitted to the same rounds.

    Raises:
        ValueError: alpha is not what its sums give, or times are not positive.
    """
    if "alpha_numerator" in table:
        total = float(table["alpha_numerator"].sum() / table["alpha_denominator"].sum())
        if not abs(total - alpha) <= 1e-9:
            raise ValueError(f"alpha is {alpha} but its sums over the account's prompts give {total}")
    if not (t1_s > 0 and table["verify_s"].sum() > 0 and table["baseline_round_s"].sum() > 0):
        raise ValueError("the account needs positive times: t1, verification, and the baseline's rounds")

    def statistic(sums: Columns) -> Mapping[str, np.ndarray]:
        values = account_values(sums, alpha, gamma, t1_s)
        # Without sums omega does not vary between replicates, yet it has one value in each.
        values["omega"] = np.broadcast_to(values["omega"], np.shape(values["speedup"]))
        return values

    intervals = bootstrap(table, statistic, replicates, seed)
    values = {name: interval.estimate for name, interval in intervals.items()}
    factors = {name: values[name] for name in FACTORS if name in values}
    return Account(
        alpha=alpha,
        gamma=gamma,
        prompts=len(table),
        speedup=values["speedup"],
        factors=factors,
        tokens_per_round=values["tokens_per_round"],
        omega_bar=values["omega_bar"],
        replay_tokens_per_round=values.get("replay"),
        t1_s=t1_s,
        t_ar_s=values["t_ar_s"],
        time={name: values[name] for name in TIMES},
        intervals={name: intervals[name] for name in (*factors, "speedup", *TIMES, *DERIVED)},
        alpha_of_text=alpha_of_text,
    )
