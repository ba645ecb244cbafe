"""The gap account of a run, of its categories and of its prompts, rebuilt from the run's files alone; and the sums
behind that of imported rounds.

A group's account is the same account over the group's prompts, so its factors multiply to the group's speedup. alpha is
the group's own: under the run's alpha, all differences between groups would be called dependence. A group without a
tested proposal has no alpha and takes the run's, so that `offered` says what is missing. t1 is the group's own too, the
mean call of its baseline: at the same contexts and in the same minutes as what it is compared with.

All of imported rounds rests on sums by prompt at each gamma, a few numbers per prompt, because all gammas of a long
trace would not fit into memory. Where lengths are by position the factor `dependence` falls into three: differences
between texts, dependence along a text, and what a draft's depth does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from specdec.config import BASELINE, NULL, ORIGINAL, PLAIN
from specdec.errors import UsageError
from specdec.theory.capped_geometric import tokens_per_round

from ..busy_machine import BusyMachine
from ..intervals import SHARE, Columns, Interval, bootstrap, per_round
from ..read.runs import Run
from ..rounds import Arms, distinct_generations, prompt_categories, prompt_sums
from .gap_account import Account, account_table, gap_account, shared_alpha


@dataclass(frozen=True)
class SharedWork:
    """The work that all arms of one cell have done, and what their accounts have in common."""

    arms: Mapping[int, pd.DataFrame]  # the rounds with the drafter, by gamma
    plain: Mapping[str, pd.DataFrame]  # sums by prompt of the baseline and of the original model, by method
    primary_gamma: int
    # the mean verification of the baseline: the bare call in the very harness that is explained, at the same contexts
    t1_s: float
    # the one alpha behind the capped geometric: of the text, else the maximum-likelihood estimate at the primary gamma
    alpha: float
    alpha_sums: pd.DataFrame | None  # prompt, numerator, denominator of that alpha; None if no proposal was ever tested
    alpha_of_text: bool
    replay: pd.DataFrame | None  # what replays of the arms' own texts expect: gamma, prompt, tokens, rounds
    machine: BusyMachine  # what other work did to these arms
    experts: pd.DataFrame | None = None  # the experts that verifications chose (`EXPERTS`); None for a dense target

    @classmethod
    def of(
        cls,
        arms: Arms,
        primary_gamma: int,
        text: pd.DataFrame | None = None,
        replay: pd.DataFrame | None = None,
        experts: pd.DataFrame | None = None,
    ) -> "SharedWork":
        """Return the work that a baseline and one drafter, at one or more gammas, have both done. ValueError for a
        missing baseline, several drafters or cells, or no rounds at the primary gamma. text (None or empty where the
        text gave no alpha), replay, experts: as `Run.alpha_sums`, `Run.replay` and `Run.experts` read them.
        """
        shared = arms.shared()
        by_gamma, methods = shared.by_gamma(), sorted({method for method, _ in shared} - {*PLAIN})
        if len(methods) != 1 or len(by_gamma) == len(shared) or shared.texts["cell"].nunique() != 1:
            raise ValueError(f"one cell with a baseline and one drafter is expected, got the drafters {methods}")
        if primary_gamma not in by_gamma:
            raise ValueError(f"no rounds at the primary gamma {primary_gamma}, only at {sorted(by_gamma)}")
        plain = {method: prompt_sums(shared.plain(method)) for method in (BASELINE, ORIGINAL)}
        t1_s = float(arms.plain()["verify_s"].mean())
        if text is not None:
            text = text[text["prompt"].isin(plain[BASELINE].index)]
            text = text if text["denominator"].sum() > 0 else None
        alpha, sums = shared_alpha(distinct_generations(by_gamma[primary_gamma]), text)
        own = None if replay is None else replay[replay["kind"] == "own"]
        machine = BusyMachine.of(shared.of_methods([method for method, _ in shared if method != NULL]))
        return cls(by_gamma, plain, primary_gamma, t1_s, alpha, sums, text is not None, own, machine, experts)

    def sums(self, gamma: int, replicates: int = 10_000) -> "AccountSums":
        """Return the sums of the account at one gamma. ValueError if the tables contradict themselves."""
        known = (self.replay, self.experts)
        replay, experts = (None if table is None else table[table["gamma"] == gamma] for table in known)
        table = account_table(self.arms[gamma], self.plain[BASELINE], gamma, replay, self.alpha_sums, experts)
        return AccountSums(self, gamma, table, replicates)


@dataclass(frozen=True)
class AccountSums:
    """The sums that the account of one gamma is made of, by prompt (`table`, as `account_table` returns it)."""

    work: SharedWork
    gamma: int
    table: pd.DataFrame
    replicates: int

    def account(self) -> Account:
        return self._made(self.table, self.work.t1_s)

    def by(self, by: Literal["category", "prompt"]) -> list[Account]:
        """Return the account of each category or prompt, in the order of names."""
        names = self.table.index.to_series()
        if by == "category":
            names = prompt_categories(self.work.arms[self.gamma]).reindex(self.table.index)
        groups = []
        for name, part in self.table.groupby(names, sort=True):
            own = "alpha_numerator" in part and bool(part["alpha_denominator"].sum() > 0)
            if not own:
                part = part.drop(columns=["alpha_numerator", "alpha_denominator"], errors="ignore")
            calls = self.work.plain[BASELINE].loc[part.index].sum()
            account = self._made(part, float(calls["verify_s"] / calls["rounds"]))
            groups.append(replace(account, group=str(name) or "none", own_alpha=own))
        return groups

    def _made(self, table: pd.DataFrame, t1_s: float) -> Account:
        work = self.work
        return gap_account(table, self.gamma, t1_s, work.alpha, self.replicates, work.alpha_of_text, work.machine.doubt)


def account_sums(run: Run) -> AccountSums:
    """Return the sums of the account of the primary gamma. UsageError if the run lacks a file, or has tables that
    contradict themselves.
    """
    arms, replay, text = run.arms(), run.replay(), run.alpha_sums()
    primary = run.primary_gamma if run.primary_gamma is not None else int(run.account()["primary_gamma"])
    try:
        return SharedWork.of(arms, primary, text, replay, run.experts()).sums(primary, run.replicates)
    except ValueError as error:
        raise UsageError(f"{run.source} has no account: {error}.") from error


def foreign_sums(run: Run) -> Mapping[int, pd.DataFrame]:
    """Return the sums of an imported data set by prompt (index), by gamma: those that `account_values` takes, with
    own_rounds and along_rounds where lengths are by position, and what `foreign_intervals` needs. Without such lengths
    alpha is fitted to the rounds; where nothing was ever tested there is none.
    """
    arms, text_alpha, replay = run.arms(), run.alpha_sums(), run.replay()
    tables = {}
    for gamma, rounds in arms.by_gamma().items():
        alpha = shared_alpha(rounds, None)[1] if text_alpha.empty else text_alpha
        counts = prompt_sums(rounds)[["accepted", "rejected", "tested", "offered"]]
        full = (rounds["accepted"] == rounds["offered"]).groupby(rounds["prompt"], observed=True).sum()
        texts = arms.texts[arms.texts["gamma"] == gamma]
        requests = (texts["tokens"] / texts["rounds"]).groupby(texts["prompt"]).agg(["size", "sum"])
        requests = requests.set_axis(["requests", "request_ratio"], axis=1)
        full.index = full.index.astype("str")
        table = account_table(rounds, None, gamma, alpha_sums=alpha).join([counts, full.rename("full"), requests])
        if not text_alpha.empty:
            own = (table["alpha_numerator"] / table["alpha_denominator"]).to_numpy()
            caps = [table[f"cap_{cap}"] * tokens_per_round(own, cap) for cap in range(gamma + 1)]
            along = replay[replay["gamma"] == gamma].groupby("prompt")["rounds"].sum()
            expected = np.sum(caps, axis=0) / table["rounds"]
            table = table.assign(along_rounds=along, own_rounds=table["tokens"] / expected)
        tables[gamma] = table.astype(float)
    return tables


def foreign_intervals(table: pd.DataFrame, gamma: int, replicates: int) -> dict[str, Interval]:
    """Return what pages on imports show besides the account; table: of `foreign_sums`, or a part of its prompts."""

    def statistic(sums: Columns) -> dict[str, np.ndarray]:
        return {
            "alpha_mle": sums["accepted"] / sums["tested"],
            "accepted_per_offered": sums["accepted"] / sums["offered"],
            "full": sums["full"] / sums["rounds"],
            "requests_mean": sums["request_ratio"] / sums["requests"],
        }

    shares = dict.fromkeys(("alpha_mle", "accepted_per_offered", "full"), SHARE)
    return bootstrap(table, statistic, replicates, ranges={**shares, "requests_mean": per_round(gamma)})
