"""Judges whether runs accept fewer tokens, or are slower, than an earlier run of the same prompts.

Both figures are ratios of sums over prompts. The unit is the prompt: rounds of one prompt are dependent, and repeats of
a greedy text say nothing new. The logarithm of later over earlier has the variance of its linear part, summed by
prompt, where what both runs have in common cancels; it is set against Student's t. Runs are added one after the
other, and the test may be stopped after any of them: look k has the chance 1 / (k (k + 1)) of the whole one, which sum
to 1, so that no false alarm is likelier than `chance` however the looks depend on each other and whoever stops.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log, nan, sqrt

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from specdec.errors import UsageError

from ..intervals import FEWEST, too_few
from ..read.runs import Run
from ..rounds import drafted
from ..sections import counted, joined
from .compare import common_prompts, content_hash, differences_in_words, primary_arm
from .leaderboard import SUMS, RunArm, open_arms

POWER = 0.8  # chance of finding a drop, at the smallest one that is said to be found
READ_FILES = (  # of a run's folder, where it has them
    *("config.yaml", "plan.json", "environment.json", "calibration.json", "session.json"),
    *("rounds.parquet", "generations.jsonl"),
)
_DROPS = np.arange(1, 1000) / 1000  # drops among which the smallest that is found is searched
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Figure:
    """A ratio of products of sums: of the columns `over`, over those of `under`."""

    name: str
    over: tuple[str, ...]
    under: tuple[str, ...]

    def linear(self, sums: pd.DataFrame) -> tuple[float, np.ndarray]:
        """Return the logarithm of the figure, and each prompt's part [P] of what it varies by; the parts sum to 0."""
        value, parts = 0.0, np.zeros(len(sums))
        for sign, names in ((1, self.over), (-1, self.under)):
            for name in names:
                column = sums[name].to_numpy(dtype=float)
                value += sign * log(column.sum())
                parts += sign * column / column.sum()
        return value, parts


TOKENS_PER_ROUND = Figure("tokens per round", ("tokens",), ("rounds",))
SPEEDUP = Figure("speedup", ("tokens", "baseline_round_s"), ("round_s", "baseline_tokens"))


@dataclass(frozen=True)
class Drop:
    """The change of a figure from an earlier run to later ones."""

    figure: str
    earlier: float  # value of the figure
    later: float  # value of the figure
    least: float  # the drop that is certain but for the chance of a false alarm, as a share; negative where none is
    tolerance: float  # the drop from which on it counts as a loss
    # the smallest drop that such a comparison finds with the chance `POWER`; NaN if it finds none. Of tokens per round,
    # each round that is lost is taken to be lost alone, beside the variance that was seen: runs that accept the same
    # have none, and would otherwise be said to find everything.
    detectable: float

    @classmethod
    def of(
        cls, figure: Figure, earlier: pd.DataFrame, later: pd.DataFrame, chance: float, tolerance: float = 0.0
    ) -> "Drop":
        """Test a figure once. earlier, later: `SUMS` and texts (their number) of each prompt (index); paired where both
        have the same prompts in the same order, else unpaired; chance: of a false alarm.
        """
        (before, ours), (after, theirs) = figure.linear(earlier), figure.linear(later)
        parts = [theirs - ours] if earlier.index.equals(later.index) else [ours, theirs]
        variance = sum(len(part) / (len(part) - 1) * float(part @ part) for part in parts)
        freedom = min(map(len, parts)) - 1
        quantile = float(stdtrit(freedom, 1 - chance))
        least = 1 - exp(after - before + quantile * sqrt(variance))
        extra = _DROPS / (1 - _DROPS) / (later["rounds"] / later["texts"]).sum() if figure is TOKENS_PER_ROUND else 0.0
        reach = (quantile + float(stdtrit(freedom, POWER))) * np.sqrt(variance + extra)
        found = log(1 - tolerance) - np.log(1 - _DROPS) >= reach
        detectable = float(_DROPS[found.argmax()]) if found.any() else nan
        return cls(figure.name, exp(before), exp(after), least, tolerance, detectable)

    @property
    def loss(self) -> bool:
        """True where the figure fell by more than the tolerance."""
        return self.least > self.tolerance + _ROUNDING

    @property
    def said(self) -> str:
        """The change and the verdict in a sentence."""
        change = self.later / self.earlier - 1
        verdict = f"a loss, of {self.least:.1%} at least" if self.loss else "no loss"
        reach = "No drop below 99.9%" if np.isnan(self.detectable) else f"A drop of {self.detectable:.1%}"
        return (
            f"{self.figure[:1].upper()}{self.figure[1:]}: {self.earlier:.3f} before, {self.later:.3f} now "
            f"({change:+.1%}), {verdict}. {reach} would be found in {POWER:.0%} of such comparisons."
        )


@dataclass(frozen=True)
class Verdict:
    """The last look at some runs."""

    looks: int  # runs that were looked at, of those that were given
    notes: tuple[str, ...]  # sentences on how the runs pair and what else differs between them
    # figure, outcome and sentence of each. The outcomes are elements of JUnit's XML: `failure` is a loss, `system-out`
    # none, and `skipped` says why the figure was not judged.
    cases: tuple[tuple[str, str, str], ...]


def judge(earlier: Run, later: Sequence[Run], gamma: int | None, chance: float, tolerance: float) -> Verdict:
    """Look at the runs one after the other, at the draft length `gamma` (None: that of the runs), until a loss is
    found. `chance` is that of a false alarm in all looks together, half of it for each figure. UsageError if a run
    cannot be read, runs have drafts of different lengths, or too few prompts.
    """
    first = read_arm(earlier, gamma)
    arms: list[RunArm] = []
    assert later
    for look, run in enumerate(later, 1):
        arms.append(read_arm(run, gamma))
        if arms[-1].gamma != first.gamma:
            raise UsageError(
                f"{earlier.source} has drafts of {first.gamma} tokens and {run.source} of {arms[-1].gamma}, which do "
                "not compare: give --gamma with one that both measured."
            )
        sums, pairing = _matched(first, arms)
        if few := too_few(min(map(len, sums))):
            raise UsageError(f"{earlier.source} and {run.source}: {few}; run both on more prompts.")
        doubt = _timing_doubt([first, *arms])
        if not doubt and sums[0].equals(sums[1]):  # no two runs take the same time to the last digit
            doubt = "both folders are of one run, which says nothing of the noise between two"
        figures = [TOKENS_PER_ROUND] if doubt else [TOKENS_PER_ROUND, SPEEDUP]
        drops = tuple(Drop.of(figure, *sums, chance_at(look, chance), tolerance) for figure in figures)
        if any(drop.loss for drop in drops):
            break
    cases = [(drop.figure, "failure" if drop.loss else "system-out", drop.said) for drop in drops]
    cases += [(SPEEDUP.name, "skipped", f"Speedup is not judged: {doubt}.")] if doubt else []
    runs = [earlier, *later[:look]]
    told = {
        "drafters": [run.drafter_name for run in runs],
        "target weights": [content_hash(run, "model")[:8] or "not recorded" for run in runs],
    }
    notes = [f"The {what} differ: {joined([*dict.fromkeys(each)])}." for what, each in told.items() if len({*each}) > 1]
    settings = differences_in_words(runs, [run.source for run in runs])
    return Verdict(look, tuple(filter(None, (pairing, *notes, settings))), tuple(cases))


def chance_at(look: int, chance: float) -> float:
    """Return the part of the chance of a false alarm that one figure has at a look; those of all looks sum to half."""
    return chance / 2 / (look * (look + 1))


def read_arm(run: Run, gamma: int | None) -> RunArm:
    """Return a run at one gamma, by default its own, with the `texts` of each prompt. UsageError without rounds."""
    facts = run.imported()
    if facts and facts.totals_only:
        lines = drafted(run.generations(texts=False))
        sums = lines.groupby(lines["prompt"].astype(str))[["tokens", "rounds"]].sum()
        arm = RunArm(sums.reindex(columns=[*SUMS], fill_value=0.0), pd.Series(dtype=str), run, facts.gamma)
    else:
        arms = open_arms(run)
        arm = primary_arm(arms) if gamma is None else arms.get(gamma, next(iter(arms.values())))
        lines = run.arms().texts
        lines = drafted(lines[lines["gamma"] == arm.gamma])
    if gamma not in (None, arm.gamma):
        raise UsageError(f"{run.source} has no drafts of {gamma} tokens: leave --gamma out for those of {arm.gamma}.")
    texts = lines.groupby(lines["prompt"].astype(str)).size().rename("texts")
    return RunArm(arm.sums.join(texts), arm.category, run, arm.gamma, arm.doubt)


def _matched(first: RunArm, arms: Sequence[RunArm]) -> tuple[tuple[pd.DataFrame, pd.DataFrame], str]:
    """Return the sums of the earlier run and of the later ones pooled, over which prompts, and a sentence on that."""
    shared = [common_prompts([first, arm])[0] for arm in arms]
    pooled = pd.concat([arm.sums for arm in arms]).groupby(level=0).sum()
    names = sorted(set().union(*shared))
    if len(names) < max(FEWEST, min(len(first.sums), len(pooled)) / 2):
        said = f"{len(names)} of the prompts are" if names else "none of the prompts is"
        return (first.sums, pooled), f"Unpaired: {said} in both ({len(first.sums)} before, {len(pooled)} now)."
    own = pd.concat([arm.sums.loc[common] for arm, common in zip(arms, shared, strict=True)]).groupby(level=0).sum()
    rest = max(len(first.sums), len(pooled)) - len(names)
    left = f"; {counted(rest, 'other')} left out" if rest else ""
    return (first.sums.loc[names], own.loc[names]), f"Paired on {counted(len(names), 'prompt')}{left}."


def _timing_doubt(arms: Sequence[RunArm]) -> str:
    """Return why the speedup is not judged, as a clause; "" where it is."""
    machines = set()
    for arm in arms:
        run = arm.run
        if run.simulated:
            return f"the time of {run.source} is simulated"
        if not (arm.sums[[*SPEEDUP.over, *SPEEDUP.under]].sum() > 0).all():
            return f"{run.source} has no timed plain decoding beside the drafter"
        if arm.doubt:
            return f"of {run.source}, {arm.doubt}"
        try:
            facts, threads = run.environment(), run.calibration().get("threads", {})
        except UsageError:
            return f"{run.source} does not say on which machine it ran"
        cpu, gpu = (facts.get(name) or {} for name in ("cpu", "gpu"))
        name = gpu.get("name") or f"{cpu.get('model')} with {cpu.get('usable_cores')} cores"
        machines.add(f"{name}, {threads.get('threads') or cpu.get('torch_threads')} threads")
    return f"the runs are of different machines ({'; '.join(sorted(machines))})" if len(machines) > 1 else ""
