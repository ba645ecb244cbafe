"""Rounds that other work on the machine disturbed, as `specdec.disturbance` marks them: how long they would have taken
without it, and where too little is left for a verdict on speed (theory.md 8.5). Only seconds are ever replaced.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from .rounds import SECONDS, WORK, Arm, Arms
from .sections import counted

DISTURBED, LOST = "disturbed", "lost_s"  # columns of rounds; the second only where some were disturbed
PREFILL = "prefill_disturbed"  # of a generation
MOST = 0.5  # share of an arm's rounds that may be disturbed, and
UNLIKE = 0.05  # that may be disturbed without an undisturbed round on as many tokens, for a verdict on its time
TOLD = 0.02  # share of the time from which on a run is explained by it before its figures are
_PRIOR = 5.0  # rounds as all prompts have them that a prompt's own pace is worth


def undisturbed(rounds: pd.DataFrame) -> pd.DataFrame:
    """Return the rounds of one arm with the seconds that disturbed ones would have taken, and `lost_s`, how much longer
    each one took; the table itself where none was disturbed, or too many for a verdict.

    A round is expected to take the mean of the undisturbed ones on as many tokens, interpolated between sizes that were
    seen, along a line in the tokens that are left of its text, times the pace of its prompt (theory.md 8.5).
    """
    if DISTURBED not in rounds or not 0 < rounds[DISTURBED].mean() <= MOST:
        return rounds
    hit = rounds[DISTURBED].to_numpy()
    kept = ~hit
    sizes, size = np.unique(rounds["offered_nodes"].to_numpy(), return_inverse=True)
    prompts, names = pd.factorize(rounds["prompt"])
    seen = np.bincount(size[kept], minlength=len(sizes))
    known = seen > 0

    def usual(values: np.ndarray) -> np.ndarray:
        means = np.bincount(size[kept], values[kept], len(sizes))[known] / seen[known]
        return np.interp(sizes, sizes[known], means)[size]

    left = rounds["tokens_left"].to_numpy(dtype=float)
    further = left - usual(left)
    spread = float((further[kept] ** 2).sum())
    *verbs, total = SECONDS
    parts = {name: rounds[name].to_numpy(dtype=float) for name in verbs}
    measured = rounds[total].to_numpy(dtype=float)
    parts["rest"] = measured - sum(parts.values())
    expected = {}
    for name, seconds in parts.items():  # so that the whole stays at least the sum of the verbs
        mean = usual(seconds)
        slope = float((further * (seconds - mean))[kept].sum()) / spread if spread > 0 else 0.0
        expected[name] = np.maximum(mean + slope * further, 0.0)
    whole = expected[total] = np.sum(list(expected.values()), axis=0)
    own, asked = (np.bincount(prompts[kept], each[kept], len(names)) for each in (measured, whole))
    prior = _PRIOR * whole.mean()
    pace = ((own + prior) / (asked + prior))[prompts]
    repaired = {name: np.where(hit, pace * expected[name], rounds[name]) for name in SECONDS}
    return rounds.assign(**repaired, **{LOST: measured - repaired[total]})


def undisturbed_prefills(generations: pd.DataFrame) -> pd.DataFrame:
    """Return generations whose disturbed prefills take the median of others of the prompt, else of the method."""
    if PREFILL not in generations or not generations[PREFILL].eq(True).any():
        return generations
    kept = generations["prefill_s"].where(~generations[PREFILL].eq(True))
    usual = [kept.groupby([generations[key] for key in keys]).transform("median") for keys in (WORK, ["method"])]
    seconds = kept.fillna(usual[0]).fillna(usual[1]).fillna(generations["prefill_s"])
    return generations.assign(prefill_s=seconds)


@dataclass(frozen=True)
class BusyMachine:
    """The part of a run's decoding that other work disturbed."""

    share: float  # of the decoding time of all methods, that of disturbed rounds
    rounds: int  # of all methods
    disturbed: int  # of these rounds
    hit: Mapping[Arm, float]  # the share of each arm's rounds that were disturbed
    unlike: Mapping[Arm, float]  # the share of each arm's rounds that were disturbed without a like that was not

    @classmethod
    def of(cls, arms: Arms) -> "BusyMachine":
        """Count the rounds of all arms, as `Run.arms` gives them."""
        rounds = disturbed = 0
        seconds = lost = 0.0
        hits: dict[Arm, float] = {}
        unlike: dict[Arm, float] = {}
        for key, arm in arms.items():
            took = arm["round_s"] + arm[LOST] if LOST in arm else arm["round_s"]
            rounds, seconds = rounds + len(arm), seconds + float(took.sum())
            if DISTURBED in arm:
                hit, sizes = arm[DISTURBED].to_numpy(), arm["offered_nodes"]
                alone = hit & ~sizes.isin(sizes[~hit].unique()).to_numpy()
                disturbed, lost = disturbed + int(hit.sum()), lost + float(took[hit].sum())
                hits[key], unlike[key] = float(hit.mean()), float(alone.mean())
        return cls(lost / seconds if seconds > 0 else 0.0, rounds, disturbed, hits, unlike)

    @property
    def said(self) -> str:
        """The share of the time in words, as the subject of a sentence."""
        return f"the machine was busy with other work for {self.share:.0%} of the time"

    @property
    def doubt(self) -> str:
        """Why no verdict on speed is given, as a clause; "" where one can be."""
        for (method, gamma), share in self.hit.items():
            who = f"{method} with drafts of {gamma}" if gamma else method
            if share > MOST:
                return f"{self.said}, and {share:.0%} of the rounds of {who} were disturbed"
            if self.unlike[method, gamma] > UNLIKE:
                return f"{self.said}, and some of the drafts of {who} were never timed without it"
        return ""

    @property
    def reasons(self) -> list[str]:
        """Sentences that come before every figure; none where hardly any time was disturbed."""
        if self.doubt:
            return [f"No verdict on speed, only on tokens: {self.doubt}."]
        if self.share < TOLD:
            return []
        return [f"{self.said.capitalize()}; these rounds are left out of the times."]

    def notes(self) -> list[str]:
        """Say how much of the time was disturbed, and what became of it."""
        if not self.disturbed:
            return []
        said = f"{self.said.capitalize()}, in {self.disturbed:,} of {self.rounds:,} rounds"
        if self.doubt:
            return [f"{said}: too many of one method for a verdict on speed, so that no interval of a time is given."]
        return [
            f"{said}; these are taken to have lasted as long as undisturbed ones with drafts of their size, in their "
            "text and place. Tokens and acceptance are those of all rounds."
        ]


def calibration_notes(calibration: Mapping[str, Any]) -> list[str]:
    """Say which timed calls of `calibration.json` other work disturbed, and where threads were fewer than could be."""
    notes = []
    if busy := calibration.get("disturbed", 0):
        notes.append(f"Other work disturbed {counted(busy, 'timed case')} of the calibration at every try.")
    threads = calibration.get("threads", {})
    trial = {int(number): seconds for number, seconds in threads.get("trial", {}).items()}
    if trial and (number := threads["threads"]) != max(trial):
        notes.append(
            f"Computed on {counted(number, 'thread')} instead of {max(trial)}: other work took {threads['others']:.0%} "
            f"of the processors when the run began, and a call on five tokens took {1e3 * trial[number]:.0f} ms so, "
            f"{1e3 * trial[max(trial)]:.0f} ms otherwise."
        )
    return notes
