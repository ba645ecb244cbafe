"""The gap account (theory.md 8.1): the factors that lead from the capped geometric to the measured speedup.

Their product is the measured speedup for any data, because every factor is a ratio of neighbouring quantities. Prefill
does not count; seconds are those of the rounds table. The order of the factors is a convention; the split of a round's
time into verification v, drafting g and the rest o, each over t(1), does not depend on it. Rounds without seconds, as
imported files have them, have the factors of acceptance alone, whose product is the measured tokens per round.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import nan, prod
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from specdec.theory.capped_geometric import tokens_per_round

from ..intervals import RELATIVE, SHARE, Columns, Interval, bootstrap, per_round
from ..rounds import counts_by_prompt, prompt_sums


class Factor(NamedTuple):
    """The words for a factor."""

    name: str
    symbol: str  # its formula
    cause: str  # what it stands for, as the end of "what costs most is"
    plainly: str = ""  # the same for readers without the glossary
    gaining: str = ""  # the end of "what gains most is", where `cause` names what can only cost


FACTORS = {
    "omega": Factor("capped geometric", "Ω(α, γ)", "the capped geometric"),
    "offered": Factor(
        "fewer tokens offered",
        "Ω̄ / Ω",
        "fewer tokens offered than gamma",
        "that fewer tokens are proposed than were asked for",
    ),
    "dependence": Factor(
        "dependence between positions",
        "τ replay / Ω̄",
        "dependence between positions and differences between texts",
        "that tokens are accepted far more often in some places than in others",
    ),
    "drift": Factor(
        "drafter drift or chance",
        "τ / τ replay",
        "drift of the drafter, or chance",
        "that the drafter does worse in use than along a finished text, or chance",
    ),
    "draft": Factor("drafts cost time", "1 / (1 + g)", "the time of drafting"),
    "experts": Factor(
        "reading more experts",
        "(1 + g) / (x + g)",
        "the experts that several tokens choose and one does not",
        "that a call on several tokens reads more of a mixture's experts than a call on one",
    ),
    "verify": Factor(
        "verifying more tokens",
        "(1 + g) / (v + g)",
        "verifying several tokens in one call",
        "verifying several tokens in one call, which takes longer than a call on one token",
        "calls on a draft, which took less time here than calls on one token",
    ),
    "restore": Factor(
        "bringing back the state",
        "(v + g) / (v + g + r)",
        "bringing back the state of the committed text",
        "evaluating accepted tokens again, because a state cannot be cut after a rejection",
    ),
    "overhead": Factor("the loop's own time", "(v + g + r) / (v + g + o)", "the loop's own time"),
    "baseline": Factor(
        "the baseline's own overhead", "t AR / t(1)", "the baseline's time per token against the bare call"
    ),
}
NO_STATE = FACTORS["overhead"]._replace(symbol="(v + g) / (v + g + o)")  # overhead, where nothing is restored
AFTER_EXPERTS = FACTORS["verify"]._replace(  # verify, where the experts stand apart
    symbol="(x + g) / (v + g)",
    cause="verifying several tokens in one call, beyond the experts that it reads",
    plainly="verifying several tokens in one call, which takes longer than reading its weights does",
    gaining="calls on a draft, which took less time than the experts that they read would have it",
)
NO_REPLAY = Factor(  # dependence and drift in one
    "dependence, drift or chance",
    "τ / Ω̄",
    "dependence, drift or chance (no replay tells them apart)",
    "that tokens are accepted far more often in some places than in others, or chance",
)
LOOP = Factor(  # overhead and baseline in one: plain decoding runs the same loop
    "the loop's own time, net",
    "overhead x baseline",
    "the loop's own time, net of what plain decoding pays for its own",
    "the program's own time between the calls, beyond what plain decoding needs",
)
PARTS = {  # of dependence, where lengths are known by position: what each compares
    "texts": Factor("each text at its own alpha", "τ own α / Ω̄", "differences between texts"),
    "along": Factor(
        "agreement as it lies along each text, not spread evenly", "τ along / τ own α", "dependence along a text"
    ),
    "depth": Factor("tokens deep in a draft, not each drafted afresh", "τ / τ along", "the depth of a draft"),
}
TIMES = ("g", "v", "o")
REPORTED = (  # what `account.json` has an interval of, besides the factors
    *("speedup", *TIMES, "tokens_per_round", "formula", "priced", "acceptance", "loop"),
    *("tokens_error", "speedup_error", "offered_error", "offered_tokens"),
)
TIMED = (  # what seconds are in
    *("speedup", "speedup_error", *TIMES, "draft", "experts", "verify", "restore", "overhead", "baseline", "t_ar_s"),
    *("formula", "priced", "loop", "machine"),
)
EXACT = 1e-9  # a factor this close to 1 is 1, up to rounding


@dataclass(frozen=True)
class Account:
    """The factors in order (drift only with a replay, parts of dependence in its place), with an interval for each."""

    gamma: int
    prompts: int
    # by name, those that the data give; their product is the measured speedup, or without seconds the measured tokens
    # per round
    factors: dict[str, float]
    # of all `account_values`, from the same replicates, so that what is compared is paired
    intervals: dict[str, Interval]
    t1_s: float = nan  # seconds of the target's call on one token; NaN without seconds
    # True if alpha is the mean over positions of the text, False if it was fitted to the same rounds
    alpha_of_text: bool = True
    doubt: str = ""  # why its times give no verdict and have no interval, as a clause; "" where they do
    group: str = ""  # the category or prompt that it is of; "" for all
    own_alpha: bool = True  # False for a group whose texts gave none: it has that of the run

    def value(self, name: str) -> float:
        """Return one of the `account_values` of the data."""
        return self.intervals[name].estimate

    @property
    def alpha(self) -> float:
        return self.value("alpha")

    @property
    def speedup(self) -> float:
        """The baseline's seconds per token over the speculative ones."""
        return self.value("speedup")

    @property
    def time(self) -> dict[str, float]:
        """Draft g, verification v and the rest o of a round over t1; their sum is the round's time."""
        return {name: self.value(name) for name in TIMES}

    @property
    def product(self) -> float:
        """The product of the factors: equal to `speedup` up to rounding."""
        return prod(self.factors.values())

    def named(self, factor: str) -> Factor:
        """Return the words for a factor or for `loop`; without a replay dependence and drift are one factor."""
        if factor == "dependence" and not {"drift", "depth"} & set(self.factors):  # a replay would tell them apart
            return NO_REPLAY
        if factor == "overhead" and "restore" not in self.factors:
            return NO_STATE
        if factor == "verify" and "experts" in self.factors:
            return AFTER_EXPERTS
        return {**FACTORS, **PARTS, "loop": LOOP}[factor]


def shared_alpha(rounds: pd.DataFrame, text_sums: pd.DataFrame | None) -> tuple[float, pd.DataFrame | None]:
    """Return the one alpha of a run's capped geometric (`account/alpha`), and its sums by prompt.

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
    baseline_sums: pd.DataFrame | None,
    gamma: int,
    replay: pd.DataFrame | None = None,
    alpha_sums: pd.DataFrame | None = None,
    experts: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return all that the account needs as sums by prompt (index): resampling its lines resamples the account.

    cap_0 ... cap_gamma count rounds by the draft tokens that could have counted: those offered, but at most one less
    than the tokens left. `baseline_sums` are the `prompt_sums` of the baseline, None where nothing was timed; `replay`
    has prompt, tokens and expected rounds along the same texts; `alpha_sums` has prompt, numerator, denominator;
    `experts` has prompt, calls and reads of verifications (`analysis.read.runs.EXPERTS`). Either of them may be empty.
    ValueError if a table lacks a prompt or a round offered more than gamma.
    """
    if len(speculative) and speculative["offered"].max() > gamma:
        raise ValueError(f"a round offered {speculative['offered'].max()} tokens, more than gamma {gamma}")
    cap = np.minimum(speculative["offered"], speculative["tokens_left"] - 1)
    caps = counts_by_prompt(speculative, cap.to_numpy(dtype=np.int64), gamma + 1).add_prefix("cap_")
    own = ["tokens", "rounds", "draft_s", "verify_s", "round_s", "lost_s", "restore_s"]  # as far as there are some
    table = prompt_sums(speculative).filter(own).join(caps)
    parts = {}
    if baseline_sums is not None:
        parts["baseline"] = baseline_sums.filter(["tokens", "round_s", "lost_s"]).add_prefix("baseline_")
    for name, given, columns in ("replay", replay, ["tokens", "rounds"]), ("experts", experts, ["calls", "reads"]):
        if given is not None and len(given):
            parts[name] = given.groupby("prompt")[columns].sum().add_prefix(f"{name}_")
    if alpha_sums is not None:
        totals = alpha_sums.groupby("prompt")[["numerator", "denominator"]].sum().add_prefix("alpha_")
        table = table.join(totals).fillna(0.0)  # a prompt without a proposal has no positions to sum over
    for name, part in parts.items():
        lacking = table.index.difference(part.index)
        if len(lacking):
            raise ValueError(f"the {name} figures lack {len(lacking)} prompts, the first is {lacking[0]!r}")
        table = table.join(part)
    return table.astype(float)


def account_values(
    sums: Columns, *, gamma: int, alpha: float = nan, t1_s: float | None = None
) -> dict[str, np.ndarray]:
    """Return all quantities of the account from sums: of the data (scalars), or of the replicates [B].

    The factors, and what they are made of: `alpha`, `tokens_per_round`, `omega_bar` (mean omega at what each round
    offered and had left), `replay`, `t_ar_s` (seconds per token of the baseline), g, v and o. `formula`: the
    speedup of the capped geometric, omega / (1 + g), which counts the drafts that were paid for. `priced`: the same
    tokens per round at measured costs of verification too, omega / (v + g). `acceptance`: tokens per round over omega,
    so that formula x verify = priced and priced x acceptance x restore x loop = speedup. `loop`: overhead x baseline,
    as plain decoding runs the same loop. `machine`: the speedup by the clock over `speedup`, for what other work
    disturbed; it is in no factor. `tokens_error`, `speedup_error`: what it says over what was measured, less 1.
    `offered_tokens`: the mean of what a round offered, where gamma was asked for; `offered_error`: that of omega_bar.
    `x`: weights that a verification of a mixture reads, over those of a call on one token.

    sums: see `account_table`; those of imported texts also have own_rounds, expected where each text has its own alpha,
    and along_rounds, counted where every draft token is as good as a first one. alpha: used where the table has no
    columns alpha_numerator and alpha_denominator, with which it varies with the prompts. t1_s: None where nothing was
    timed.
    """
    tau = sums["tokens"] / sums["rounds"]
    chance = np.broadcast_to(alpha, np.shape(tau))
    if "alpha_numerator" in sums:
        chance = np.clip(sums["alpha_numerator"] / sums["alpha_denominator"], 0, 1)  # rounding may pass 1
    # A replicate of prompts that gave no position has no alpha, and no omega.
    known = np.where(np.isfinite(chance), 1.0, nan)
    chance = np.nan_to_num(chance)
    omega = tokens_per_round(chance, gamma) * known
    per_cap = [sums[f"cap_{cap}"] * tokens_per_round(chance, cap) for cap in range(gamma + 1)]
    omega_bar = np.sum(per_cap, axis=0) / sums["rounds"] * known
    offered = sum(cap * sums[f"cap_{cap}"] for cap in range(gamma + 1)) / sums["rounds"]
    if "replay_tokens" in sums:
        replayed = sums["replay_tokens"] / sums["replay_rounds"]
        acceptance = {"dependence": replayed / omega_bar, "drift": tau / replayed, "replay": replayed}
    else:
        acceptance = {"dependence": tau / omega_bar}
    if "own_rounds" in sums:
        own, along = sums["tokens"] / sums["own_rounds"], sums["tokens"] / sums["along_rounds"]
        acceptance |= {"texts": own / omega_bar, "along": along / own, "depth": tau / along}
    values = {
        "omega": omega,
        "offered": omega_bar / omega,
        **acceptance,
        "alpha": chance * known,
        "tokens_per_round": tau,
        "omega_bar": omega_bar,
        "acceptance": tau / omega,
        "tokens_error": omega / tau - 1,
        "offered_tokens": offered,
        "offered_error": omega_bar / tau - 1,
    }
    if t1_s is None:
        return values
    costs = cost_values(sums, t1_s)
    g, v, o, t_ar_s, speedup = costs.values()
    if {"lost_s", "baseline_lost_s"} & set(sums):
        ours, plain = (1 + sums.get(f"{who}lost_s", 0.0) / sums[f"{who}round_s"] for who in ("", "baseline_"))
        values["machine"] = plain / ours
    if "experts_reads" in sums:
        values["x"] = sums["experts_reads"] / sums["experts_calls"]
        values["experts"] = (1 + g) / (values["x"] + g)
    restored = v + g
    if "restore_s" in sums:  # a part of the rest o
        restored = v + g + sums["restore_s"] / sums["rounds"] / t1_s
        values["restore"] = (v + g) / restored
    overhead = restored / (v + g + o)
    return {
        **values,
        **costs,
        "draft": 1 / (1 + g),
        "verify": (values.get("x", 1.0) + g) / (v + g),
        "overhead": overhead,
        "baseline": t_ar_s / t1_s,
        "formula": omega / (1 + g),
        "priced": omega / (v + g),
        "loop": overhead * t_ar_s / t1_s,
        "speedup_error": omega / (1 + g) / speedup - 1,
    }


def cost_values(sums: Mapping[str, Any], t1_s: float | np.ndarray) -> dict[str, Any]:
    """Return the split of a round's time into g, v and o, each over t1; the baseline's seconds per token; the speedup.

    The speedup is tokens per round x t_ar_s over the round's seconds, (g + v + o) t1. Runs, shapes of drafts and advice
    share this function; times may be in any unit that t1_s has too.
    """
    g = sums["draft_s"] / sums["rounds"] / t1_s
    v = sums["verify_s"] / sums["rounds"] / t1_s
    o = sums["round_s"] / sums["rounds"] / t1_s - g - v
    t_ar_s = sums["baseline_round_s"] / sums["baseline_tokens"]
    return {"g": g, "v": v, "o": o, "t_ar_s": t_ar_s, "speedup": t_ar_s * sums["tokens"] / sums["round_s"]}


def gap_account(
    table: pd.DataFrame,
    gamma: int,
    t1_s: float | None = None,
    alpha: float = nan,
    replicates: int = 10_000,
    alpha_of_text: bool = True,
    doubt: str = "",
) -> Account:
    """Return the account of the prompts in `table`, an `account_table` of a run or of a part of its prompts, or the
    sums of an imported file. t1_s, alpha: see `account_values`; alpha_of_text, doubt: see `Account`. ValueError if
    times are not positive.
    """
    if t1_s is not None and not (t1_s > 0 and table["verify_s"].sum() > 0 and table["baseline_round_s"].sum() > 0):
        raise ValueError("the account needs positive times: t1, verification, and the baseline's rounds")
    ranges = {
        **dict.fromkeys(("omega", "omega_bar", "replay", "tokens_per_round"), per_round(gamma)),
        **dict.fromkeys(("alpha", "draft", "restore", "overhead"), SHARE),
        **dict.fromkeys(("tokens_error", "speedup_error", "offered_error"), RELATIVE),
    }
    values = partial(account_values, gamma=gamma, alpha=alpha, t1_s=t1_s)
    intervals = bootstrap(table, values, replicates, ranges=ranges)
    if doubt:
        intervals |= {name: Interval(value.estimate) for name, value in intervals.items() if name in TIMED}
    names = [
        name for factor in FACTORS for name in (PARTS if factor == "dependence" and "depth" in intervals else (factor,))
    ]
    factors = {name: intervals[name].estimate for name in names if name in intervals}
    return Account(gamma, len(table), factors, intervals, nan if t1_s is None else t1_s, alpha_of_text, doubt)
