"""The headline metrics of a run, one set per gamma, named as they are logged.

Repeats are pooled. A metric that the data cannot give (one prompt has no interval, gamma 1 no depth test) is
absent; `ArmSummary.iid` and the intervals say why. The run's other metrics (lossless, memory, peers) come
from elsewhere.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import isnan

import numpy as np
import pandas as pd

from specdec.config import BASELINE, ORIGINAL
from specdec.theory.capped_geometric import tokens_per_round
from specdec.theory.speedup import speedup as theoretical_speedup

from ..acceptance.iid import IidTest, iid_tests
from ..account.gap_account import Account, account_table, gap_account, shared_alpha
from ..arms import WORK, Arms
from ..intervals import Columns, Interval, bootstrap
from ..rounds import check_rounds, distinct_generations, prompt_categories, prompt_sums
from .paper_metrics import PAPERS, category_members, paper_values

OURS = ("speedup", "tokens_per_round", "alpha.mle", "accepted_per_offered")
SHARES = ("alpha.mle", "accepted_per_offered", "cost/prefill_share", "proposals.share")
WITH_INTERVAL = ("tokens_per_round", "alpha.mle", *PAPERS)
PROMPTS_OF_A_CATEGORY = 3  # at least, for figures of its own: an interval over one or two prompts says nothing
BY_CATEGORY = tuple(dict.fromkeys((*OURS, *PAPERS)))


@dataclass(frozen=True)
class RunTables:
    """The tables of one cell.

    Attributes:
        arms: the rounds by method and gamma.
        generations: a line per generation.
        alpha_sums: prompt, numerator and denominator of the mean of sum min(p, q), or of a lossy rule's own chance to
            pass, over the positions of the text with a proposal; None where the text gave none.
        replay: by gamma, the rounds V_1 that replays expect: prompt, tokens, rounds.
    """

    arms: Arms
    generations: pd.DataFrame
    alpha_sums: pd.DataFrame | None = None
    replay: Mapping[int, pd.DataFrame] = field(default_factory=dict)


@dataclass(frozen=True)
class ArmSummary:
    """The drafter at one gamma against the baseline: metrics by name, and the objects behind them.

    Attributes:
        sums: by prompt, as `rounds.prompt_sums` has them.
    """

    method: str
    gamma: int
    sums: pd.DataFrame
    metrics: dict[str, float]
    account: Account
    iid: dict[str, IidTest]


@dataclass(frozen=True)
class Summary:
    """The arms of a run by gamma, under the one alpha that stands behind every theory number."""

    arms: dict[int, ArmSummary]
    primary_gamma: int
    alpha: float  # account/alpha
    alpha_source: str  # "text" or "mle"


def summarise(
    tables: RunTables, primary_gamma: int, replicates: int = 10_000, permutations: int = 1999, seed: int = 0
) -> Summary:
    """Summarise one cell: a baseline, one drafter at one or more gammas, maybe the original model.

    t(1) is the mean verification of the baseline: the bare call in the very harness that is explained, at the same
    contexts. A drafter step costs its share of the measured draft time. Without sums of alpha along the text, alpha is
    the maximum-likelihood estimate at the primary gamma. Only work that every arm has done counts.

    Raises:
        ValueError: tables that contradict themselves, a missing baseline, several drafters or cells, or no rounds at
            the primary gamma.
    """
    shared = tables.arms.shared()
    arms = shared.of_one_drafter(primary_gamma)
    t1_s = float(tables.arms.plain()["verify_s"].mean())
    plain = {method: prompt_sums(shared.plain(method)) for method in (BASELINE, ORIGINAL)}
    prompts = list(plain[BASELINE].index)
    text = tables.alpha_sums
    if text is not None:
        text = text[text["prompt"].isin(prompts)]
    alpha, alpha_sums = shared_alpha(distinct_generations(arms[primary_gamma]), text)

    of_text = _alpha_text(text, prompts, replicates, seed)
    summaries = {}
    for gamma, arm in arms.items():
        check_rounds(arm)
        distinct = distinct_generations(arm)
        sums = account_table(arm, plain[BASELINE], gamma, tables.replay.get(gamma), alpha_sums)
        account = gap_account(sums, alpha, gamma, t1_s, replicates, seed, text is not None)
        tests = iid_tests(distinct, permutations, seed)
        by_prompt = prompt_sums(arm)
        table = _table(arm, by_prompt, prompt_sums(distinct), plain, tables.generations)
        category = prompt_categories(arm)
        flagged = _flagged(tables.generations, arm)
        headline = _headline(table, replicates, seed)
        metrics = {
            **headline,
            **_unflagged(table, flagged, headline, replicates, seed),
            **_by_category(table, category, replicates, seed),
            **_theory(account),
            **{f"account/{name}": value for name, value in account.factors.items()},
            **{f"iid/{name}_p": test.p_value for name, test in tests.items()},
            "account/alpha": alpha,
            **of_text,
        }
        defined = {name: float(value) for name, value in metrics.items() if not isnan(value)}
        summaries[gamma] = ArmSummary(str(arm["method"].iloc[0]), gamma, by_prompt, defined, account, tests)
    return Summary(summaries, primary_gamma, alpha, "mle" if text is None else "text")


def _table(
    arm: pd.DataFrame,
    sums: pd.DataFrame,
    distinct: pd.DataFrame,
    plain: Mapping[str, pd.DataFrame],
    generations: pd.DataFrame,
) -> pd.DataFrame:
    """Return sums per prompt (index) of the arm, its distinct repeats, the baseline, the original model, and prefill.

    Args:
        sums, distinct: of the arm and of its distinct repeats, by prompt.
        plain: of the baseline and of the original model, over the work that they share with the arm.
    """
    work = pd.MultiIndex.from_frame(Arms.of(arm).texts[WORK])
    done = generations[pd.MultiIndex.from_frame(generations[WORK]).isin(work)]
    ours = (done["method"] == arm["method"].iloc[0]) & (done["gamma"] == arm["gamma"].iloc[0])
    theirs = done["method"] == BASELINE
    table = sums.join(distinct[["accepted", "tested"]].add_prefix("distinct_"))
    for method, of_method in plain.items():
        if len(of_method):
            table = table.join(of_method[["tokens", "round_s"]].add_prefix(f"{method}_"))
    return (
        table.join(done[ours].groupby("prompt")["prefill_s"].sum())
        .join(done[theirs].groupby("prompt")["prefill_s"].sum().rename("baseline_prefill_s"))
        .fillna(0.0)
    )


def headline_values(sums: Columns) -> dict[str, np.ndarray]:
    """Return the headline figures from sums of the whole run, of each prompt [P], or of the replicates [B]."""
    baseline_s, baseline_tokens = sums["baseline_round_s"], sums["baseline_tokens"]
    baseline_total_s, total_s = baseline_s + sums["baseline_prefill_s"], sums["round_s"] + sums["prefill_s"]
    per_token = baseline_s / baseline_tokens
    return {
        "speedup": per_token * sums["tokens"] / sums["round_s"],
        "speedup.end_to_end": baseline_total_s / baseline_tokens * sums["tokens"] / total_s,
        "cost/prefill_share": sums["baseline_prefill_s"] / baseline_total_s,
        "tokens_per_round": sums["tokens"] / sums["rounds"],
        "alpha.mle": sums["distinct_accepted"] / sums["distinct_tested"],
        "accepted_per_offered": sums["accepted"] / sums["offered"],
        "nodes_per_round": sums["nodes"] / sums["rounds"],
        "proposals.share": sums["proposals"] / sums["rounds"],
        **paper_values(sums),
    }


def _headline(table: pd.DataFrame, replicates: int, seed: int) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for name, interval in bootstrap(table, headline_values, replicates, seed, shares=SHARES).items():
        metrics |= interval.as_metrics(name) if name in WITH_INTERVAL else {name: interval.estimate}
    with np.errstate(divide="ignore", invalid="ignore"):  # a prompt without a proposal has no alpha
        per_prompt = headline_values({name: table[name].to_numpy() for name in table})["speedup"]
    metrics["speedup.prompt_mean"] = float(per_prompt.mean())
    metrics["speedup.prompt_median"] = float(np.median(per_prompt))
    return metrics


def _flagged(generations: pd.DataFrame, arm: pd.DataFrame) -> set[str]:
    """Return the prompts whose output fell into repetition, with the baseline or in this arm."""
    method, gamma = arm["method"].iloc[0], arm["gamma"].iloc[0]
    here = (generations["method"] == BASELINE) | ((generations["method"] == method) & (generations["gamma"] == gamma))
    return set(generations.loc[here & generations["flagged"].astype(bool), "prompt"])


def _alpha_text(sums: pd.DataFrame | None, prompts: Collection[str], replicates: int, seed: int) -> dict[str, float]:
    """Return alpha.text with its prompt bootstrap, from the replicates of the account; nothing without a proposal.

    `sums`: prompt, numerator, denominator. `prompts` are the run's: one without a proposal has sums of 0.
    """
    if sums is None or not sums["denominator"].sum() > 0:
        return {}
    table = sums.groupby("prompt")[["numerator", "denominator"]].sum().reindex(list(prompts), fill_value=0.0)

    def mean(s: Columns) -> dict[str, np.ndarray]:
        return {"alpha": np.clip(s["numerator"] / s["denominator"], 0, 1)}  # rounding may pass 1

    return bootstrap(table, mean, replicates, seed, shares=("alpha",))["alpha"].as_metrics("alpha.text")


def _unflagged(
    table: pd.DataFrame, flagged: Collection[str], of_all: Mapping[str, float], replicates: int, seed: int
) -> dict[str, float]:
    """Return speedup and tokens per round over the prompts whose outputs are not repetitive by any method.

    Args:
        of_all: the headline figures of the whole table.
    """
    unflagged = table[~table.index.isin(list(flagged))]
    metrics = {"repetition/share": 1 - len(unflagged) / len(table)}
    if len(unflagged) == 0:
        return metrics
    if len(unflagged) == len(table):
        headline = dict(of_all)
    else:
        headline = _headline(unflagged, replicates, seed)
    for name in ("speedup", "tokens_per_round"):
        metrics |= Interval.from_metrics(headline, name).as_metrics(f"{name}.unflagged")
    return metrics


def _by_category(table: pd.DataFrame, category: pd.Series, replicates: int, seed: int) -> dict[str, float]:
    """Return category/<name>/<metric> where the prompts have more than one category, of those with enough prompts."""
    metrics: dict[str, float] = {}
    for name, members in category_members(category.reindex(table.index)).items():
        if members.sum() < PROMPTS_OF_A_CATEGORY:
            continue
        headline = _headline(table[members], replicates, seed)
        wanted = [metric + end for metric in BY_CATEGORY for end in ("", ".ci_low", ".ci_high")]
        metrics |= {f"category/{name}/{key}": headline[key] for key in wanted if key in headline}
    return metrics


def _theory(account: Account) -> dict[str, float]:
    """Return what the textbook formula expects, and what a round costs."""
    gamma = account.gamma
    c = account.time["g"] / gamma
    return {
        "tokens_per_round.capped_geometric": float(tokens_per_round(account.alpha, gamma)),
        "speedup.capped_geometric": float(theoretical_speedup(account.alpha, gamma, c)),
        "cost/t1_ms": 1e3 * account.t1_s,
        "cost/t_ar_ms": 1e3 * account.t_ar_s,
        "cost/c": c,
        **{f"cost/{name}": value for name, value in account.time.items()},
    }
