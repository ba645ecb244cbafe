"""Ranks drafters on the same prompts: speedup by category, tokens per round beside cost per round, and how firmly each
rank is held when the prompts are drawn again, the same for every arm.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, nan

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import rankdata

from specdec.errors import UsageError

from ..account.gap_account import cost_values
from ..busy_machine import BusyMachine
from ..figures import pictures, style
from ..intervals import ANY, LEVEL, POSITIVE, Interval, Range, per_round, too_few, with_replicates
from ..read.runs import Run
from ..rounds import prompt_categories, prompt_sums
from ..sections import counted

TOKENS = "tokens_per_round"
QUANTITIES = {  # quantity: what an axis calls it
    "speedup": "speedup over the baseline",
    TOKENS: "tokens per round",
    "g": "draft time per round over t(1)",
    "v": "verify time per round over t(1)",
    "o": "other time per round over t(1)",
}
MOST_CATEGORIES = 13  # Spec-Bench's, its eight of MT-Bench apart
OWN_SUMS = ("tokens", "rounds", "draft_s", "verify_s", "round_s")
BASELINE_SUMS = ("baseline_tokens", "baseline_rounds", "baseline_verify_s", "baseline_round_s")
SUMS = (*OWN_SUMS, *BASELINE_SUMS)


@dataclass(frozen=True)
class RunArm:
    """A run at one gamma: SUMS per prompt (index), each prompt's category, and `BusyMachine.doubt` of the run."""

    sums: pd.DataFrame
    category: pd.Series
    run: Run
    gamma: int
    doubt: str = ""


def open_arms(run: Run) -> dict[int, RunArm]:
    """Return the run's arms by gamma, over the work that all of them have done. UsageError where there is none."""
    try:
        shared = run.arms().shared()
    except ValueError as error:
        raise UsageError(f"{run.source}: {error}; let the run finish, or run it again.") from None
    arms = shared.by_gamma()
    if not arms:
        raise UsageError(f"{run.source} has only the baseline's rounds: run it with +drafter=NAME.")
    # Imported rounds may come without a baseline: no speedup then, but tokens per round.
    baseline = prompt_sums(shared.plain()).add_prefix("baseline_")[list(BASELINE_SUMS)]
    category = prompt_categories(next(iter(shared.values())))
    sums = {gamma: prompt_sums(arm)[list(OWN_SUMS)].join(baseline).fillna(0.0) for gamma, arm in arms.items()}
    doubt = BusyMachine.of(shared).doubt
    return {gamma: RunArm(table, category, run, gamma, doubt) for gamma, table in sums.items()}


@dataclass(frozen=True)
class ScoredArms:
    """Arms on the same prompts, in the data and in the same bootstrap replicates."""

    labels: tuple[str, ...]  # names of the A arms
    depths: tuple[float, ...]  # of the deepest draft of each arm, infinite where it is not known
    prompts: int  # how many prompts all arms share
    scores: Mapping[str, np.ndarray]  # by quantity, [1 + B, A]: the data's, then the replicates', if prompts suffice
    doubt: str = ""  # why what was timed has no intervals and ranks no arm; "" where it does

    @cached_property
    def values(self) -> dict[str, np.ndarray]:
        """The data's [A] by quantity."""
        return {quantity: scores[0] for quantity, scores in self.scores.items()}

    def interval(self, quantity: str, arm: int) -> Interval:
        possible = per_round(self.depths[arm]) if quantity == TOKENS else POSITIVE
        return self._interval(quantity, self.scores[quantity][:, arm], possible)

    def difference(self, quantity: str, first: int, second: int) -> Interval:
        """Return the first minus the second, paired by prompt."""
        return self._interval(quantity, self.scores[quantity][:, first] - self.scores[quantity][:, second], ANY)

    def ratio(self, quantity: str, first: int, second: int) -> Interval:
        """Return the first over the second, paired by prompt."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = self.scores[quantity][:, first] / self.scores[quantity][:, second]
            return self._interval(quantity, ratio, POSITIVE)

    def _interval(self, quantity: str, scores: np.ndarray, within: Range) -> Interval:
        if self.doubt and quantity != TOKENS:
            return Interval(float(scores[0]), prompts=self.prompts)
        return Interval.of_replicates(scores, self.prompts, within)

    def known(self, quantity: str) -> bool:
        """Return True if every arm has a value."""
        return bool(np.isfinite(self.values[quantity]).all())

    def order(self, quantity: str) -> list[int]:
        """Return the arms, best first; equal ones stay in their order."""
        return [int(arm) for arm in np.argsort(-self.values[quantity], kind="stable")]

    def apart(self, quantity: str, first: int, second: int) -> bool:
        """Return True if the paired interval of their ratio leaves out 1; too few prompts have none."""
        ratio = self.ratio(quantity, first, second)
        return ratio.low > 1 or ratio.high < 1

    @property
    def ranked(self) -> str:
        """The quantity by which arms are ranked: speedup, or tokens per round where that is not known or in doubt."""
        return "speedup" if self.known("speedup") and not self.doubt else TOKENS

    @property
    def too_few(self) -> str:
        """The reason in words why no arm is told from another, "" where there are enough prompts for a verdict."""
        return too_few(self.prompts)

    def rank_shares(self, quantity: str) -> np.ndarray:
        """Return [A, A] the share of replicates in which an arm (line) holds a rank (column), NaN for too few prompts.
        Arms that tie share the ranks that they take up.
        """
        drawn, arms = self.scores[quantity][1:], len(self.labels)
        if self.too_few:
            return np.full((arms, arms), nan)
        drawn = drawn[np.isfinite(drawn).all(axis=1)]
        best, worst = (rankdata(-drawn, method=method, axis=1) for method in ("min", "max"))  # [B, A]
        held = [((best <= rank) & (rank <= worst)) / (worst - best + 1) for rank in range(1, arms + 1)]
        return np.stack([share.mean(axis=0) for share in held], axis=1)

    def rank_table(self) -> pd.DataFrame:
        """Return a line per arm, best first: the share of replicates in which it holds each rank, in per cents."""
        order = self.order(self.ranked)
        shares = self.rank_shares(self.ranked)[order]
        ranks = {f"rank {rank}" if rank > 1 else "best": column for rank, column in enumerate(shares.T, 1)}
        table = pd.DataFrame(ranks).map("{:.0%}".format)
        table.insert(0, "run", [self.labels[arm] for arm in order])
        return table


def score(
    sums: Sequence[pd.DataFrame],
    labels: Sequence[str],
    prompts: Sequence[str],
    replicates: int = 10_000,
    seed: int = 0,
    depths: Sequence[float] = (),
    doubt: str = "",
) -> ScoredArms:
    """Score arms over `prompts`, which all of them have, by the SUMS per prompt (index) of each; `depths`, where they
    are known, and `doubt` are those of `ScoredArms`.
    """
    tables = np.stack([table.loc[list(prompts), list(SUMS)].to_numpy() for table in sums], axis=1)  # [P, A, S]
    totals = with_replicates(tables.reshape(len(prompts), -1), replicates, seed)  # [1 + B, A S]
    by_name = dict(zip(SUMS, np.moveaxis(totals.reshape(len(totals), *tables.shape[1:]), 2, 0), strict=True))
    with np.errstate(divide="ignore", invalid="ignore"):  # t(1) is the mean verification, as in a run's account
        costs = cost_values(by_name, by_name["baseline_verify_s"] / by_name["baseline_rounds"])
        scores = {TOKENS: by_name["tokens"] / by_name["rounds"], **costs}
    return ScoredArms(tuple(labels), tuple(depths) or (inf,) * len(labels), len(prompts), scores, doubt)


def categories(arms: Sequence[RunArm], prompts: Sequence[str]) -> dict[str, list[str]]:
    """Group prompts by category; empty for one category, for more than a table holds, or where each has one prompt."""
    category = arms[0].category.loc[list(prompts)]
    members = {str(name): list(part.index) for name, part in category.groupby(category, sort=True)}
    return members if 1 < len(members) <= MOST_CATEGORIES and len(members) < len(prompts) else {}


def leaderboard(scores: ScoredArms, arms: Sequence[RunArm], prompts: Sequence[str], replicates: int) -> pd.DataFrame:
    """Return a line per arm, best first: the `ranked` quantity by category and overall, tokens per round and its cost;
    `scores` are those of the `arms` over all of these prompts.
    """
    quantity = scores.ranked
    columns: dict[str, list[str]] = {"run": list(scores.labels), "gamma": [str(arm.gamma) for arm in arms]}
    sums = [arm.sums for arm in arms]
    for name, members in categories(arms, prompts).items():
        part = score(sums, scores.labels, members, replicates, depths=scores.depths, doubt=scores.doubt)
        columns[f"{name or 'none'} ({len(members)})"] = [f"{part.interval(quantity, a):.2f}" for a in range(len(arms))]
    beside = [name for name in QUANTITIES if name != quantity and np.isfinite(scores.values[name]).any()]
    for heading, name in (("overall", quantity), *((name.replace("_", " "), name) for name in beside)):
        columns[heading] = [f"{scores.interval(name, arm):.2f}" for arm in range(len(arms))]
    table = pd.DataFrame(columns).iloc[scores.order(quantity)].reset_index(drop=True)
    table.insert(0, "rank", range(1, len(table) + 1))
    return table


@style.in_style
def leaderboard_figure(scores: ScoredArms, quantity: str = "speedup", *, title: str) -> Figure:
    """Draw a dot with its interval per arm, filled where the best is not told from it."""
    order = scores.order(quantity)
    intervals = [scores.interval(quantity, arm) for arm in order]
    names = [style.wrapped(scores.labels[arm], 26) for arm in order]
    close = [at == 0 or not scores.too_few and not scores.apart(quantity, order[0], a) for at, a in enumerate(order)]
    level = "no intervals of so few" if scores.too_few else f"{LEVEL:.0%} prompt-bootstrap intervals"
    prompts = f"{counted(scores.prompts, 'prompt')} that all runs share"
    filled = "" if scores.too_few else "Filled: the best, and what its paired interval cannot tell from it."
    figure, axes = style.new_figure(title, f"{prompts}; {level}. {filled}".strip(), height=2.1 + 0.42 * len(order))
    pictures.dots(axes, names, intervals, close, start=1)
    axes.set_xlabel(f"{QUANTITIES[quantity]} (dotted: no drafter)")
    return figure
