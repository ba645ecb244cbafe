"""The gap account of a run, of its categories and of its prompts, rebuilt from the run's files alone.

A group's account is the same account over the group's prompts, so its factors multiply to the group's speedup. alpha is
the group's own: under the run's alpha, all differences between groups would be called dependence. A group without a
tested proposal has no alpha and takes the run's, so that `offered` says what is missing. t1 is the group's own too, the
mean call of its baseline: at the same contexts and in the same minutes as what it is compared with.
"""

from dataclasses import dataclass
from typing import Literal

import pandas as pd

from specdec.errors import UsageError

from ..read.runs import Run
from ..rounds import distinct_generations, prompt_categories, prompt_sums
from .gap_account import Account, account_table, gap_account, shared_alpha


@dataclass(frozen=True)
class GroupAccount:
    """The account of a category or prompt; `own_alpha` is False where its texts gave none."""

    name: str
    account: Account
    own_alpha: bool


@dataclass(frozen=True)
class AccountSums:
    """The sums that the account of one gamma is made of, by prompt, and what all prompts share."""

    table: pd.DataFrame  # as `account_table` returns it, by prompt
    baseline_calls: pd.DataFrame  # by prompt: rounds and verify_s of the baseline
    categories: pd.Series  # by prompt
    alpha: float
    gamma: int
    t1_s: float
    replicates: int
    seed: int
    alpha_of_text: bool  # False: fitted to the rounds of the primary gamma

    def account(self) -> Account:
        """Return the account of the whole run."""
        return self._made(self.table, self.alpha, self.t1_s)

    def by(self, by: Literal["category", "prompt"]) -> list[GroupAccount]:
        """Return the account of each category or prompt, in the order of names."""
        names = self.categories.reindex(self.table.index) if by == "category" else self.table.index.to_series()
        return [self._group(str(name) or "none", part) for name, part in self.table.groupby(names, sort=True)]

    def _group(self, name: str, part: pd.DataFrame) -> GroupAccount:
        own = "alpha_numerator" in part and bool(part["alpha_denominator"].sum() > 0)
        alpha = float(part["alpha_numerator"].sum() / part["alpha_denominator"].sum()) if own else self.alpha
        if not own:
            part = part.drop(columns=["alpha_numerator", "alpha_denominator"], errors="ignore")
        calls = self.baseline_calls.loc[part.index].sum()
        t1_s = float(calls["verify_s"] / calls["rounds"])
        return GroupAccount(name, self._made(part, alpha, t1_s), own)

    def _made(self, table: pd.DataFrame, alpha: float, t1_s: float) -> Account:
        return gap_account(table, alpha, self.gamma, t1_s, self.replicates, self.seed, self.alpha_of_text)


def account_sums(run: Run, gamma: int | None = None) -> AccountSums:
    """Return the sums of the account at `gamma` (None: the primary one).

    UsageError if the run lacks a file, did not measure that gamma, or has tables that contradict themselves.
    """
    measured, replay, text = run.arms(), run.replay(), run.alpha_sums()
    primary = run.primary_gamma if run.primary_gamma is not None else int(run.account()["primary_gamma"])
    chosen = primary if gamma is None else gamma
    try:
        shared = measured.shared()
        arms = shared.of_one_drafter(primary)
        if chosen not in arms:
            known = ", ".join(map(str, arms))
            raise UsageError(f"{run.source} did not measure gamma {chosen}, only {known}.")
        baseline, t1_s = prompt_sums(shared.plain()), float(measured.plain()["verify_s"].mean())
        text = text[text["prompt"].isin(baseline.index)]
        has_alpha = len(text) > 0 and text["denominator"].sum() > 0
        alpha, sums = shared_alpha(distinct_generations(arms[primary]), text if has_alpha else None)
        own = replay[(replay["gamma"] == chosen) & (replay["kind"] == "own")]
        table = account_table(arms[chosen], baseline, chosen, own if len(own) else None, sums)
    except ValueError as error:
        raise UsageError(f"{run.source} has no account: {error}.") from error
    return AccountSums(
        table=table,
        baseline_calls=baseline[["rounds", "verify_s"]],
        categories=prompt_categories(arms[chosen]),
        alpha=alpha,
        gamma=chosen,
        t1_s=t1_s,
        replicates=run.whole_number("measurement.bootstrap"),
        seed=run.whole_number("seed"),
        alpha_of_text=has_alpha,
    )


def account_of(run: Run, gamma: int | None = None) -> Account:
    """Return the account that the run logged, at `gamma` (None: the primary one). Raises as `account_sums` does."""
    return account_sums(run, gamma).account()
