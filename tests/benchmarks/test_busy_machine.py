"""Coverage of the speedup's interval where other work disturbs a run: disturbances that were recorded here are injected
into rounds that were decoded on a quiet machine, 10,000 runs of 17 prompts that are drawn from those of one.

`repaired` holds the speedup of all prompts that are drawn from, `repaired_own` that of the same run without other work.

SPECDEC_QUIET_RUN and SPECDEC_BUSY_RUN name folders of runs to take rounds from; without them the first command of the
README is run, on a machine that is waited for to be quiet, and again beside a process that computes.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from specdec.analysis.busy_machine import BusyMachine, undisturbed
from specdec.analysis.intervals import Interval, bootstrap
from specdec.analysis.rounds import SECONDS, Arms, prompt_sums
from specdec.disturbance import _APART_S, disturbed

pytestmark = pytest.mark.benchmark
RUNS, PROMPTS, GAMMA = 10_000, 17, 4
LEVELS, BURSTS, MILD = (0.0, 0.2, 0.4, 0.6), (None, 0.1, 1.0, 10.0), (1.3, 2.0)
ARMS = (("baseline", 0), ("ngram", GAMMA))
COLUMNS = ["prompt", "offered_nodes", "offered", "accepted", "rejected", "committed", "tokens_left", *SECONDS]


def recorded(name: str, folder: Path, *more: str) -> pd.DataFrame:
    """Return the rounds of a run that exists, or of one that is made."""
    if name not in os.environ:
        command = [sys.executable, "-m", "specdec.run", "+drafter=ngram", "tracking.enabled=false", *more]
        subprocess.run([*command, f"hydra.run.dir={folder}"], check=True)
    rounds = pd.read_parquet(Path(os.environ.get(name, folder)) / "rounds.parquet")
    return rounds[[key in ARMS for key in zip(rounds["method"], rounds["gamma"], strict=True)]]


def speedup(tables: list[pd.DataFrame], seed: int) -> Interval:
    plain, ours = map(prompt_sums, tables)
    sums = ours[["tokens", "round_s"]].join(plain[["tokens", "round_s"]].add_prefix("plain_"))
    return bootstrap(
        sums,
        lambda s: {"speedup": s["plain_round_s"] / s["plain_tokens"] / (s["round_s"] / s["tokens"])},
        replicates=500,
        seed=seed,
    )["speedup"]


def overlaps(seconds: np.ndarray, share: float, burst: float | None, slow: float, dice: np.random.Generator):
    """Return how much of each round's quiet seconds falls into other work that takes `share` of the clock's time, in
    bursts of so many seconds in the mean, or in single rounds at random.
    """
    if burst is None:
        return seconds * (dice.random(len(seconds)) < share / (slow * (1 - share) + share))
    ends = np.cumsum(seconds)
    busy, idle = burst / slow, burst * (1 - share) / share
    lengths = dice.exponential([idle, busy], (2 + int(2 * ends[-1] / (idle + busy)), 2))
    edges = np.cumsum(lengths.ravel()) - dice.random() * (idle + busy)
    spent = np.concatenate([[0.0], np.cumsum(lengths * [0, 1])])
    spent = np.interp(np.concatenate([[0.0], ends]), np.concatenate([[edges[0] - lengths[0, 0]], edges]), spent)
    return np.diff(spent)


def read(lost: np.ndarray, seconds: np.ndarray) -> np.ndarray:
    """Return what a run takes to be lost in rounds of so many seconds: what was lost between two readings of the watch,
    which stand between rounds and 15 milliseconds apart or more, is spread evenly over that time.
    """
    ends = np.concatenate([[0.0], np.cumsum(seconds)])
    edges = [0]
    while (edge := int(np.searchsorted(ends, ends[edges[-1]] + _APART_S))) < len(ends):
        edges.append(edge)
    edges.append(len(ends) - 1)
    return np.diff(np.interp(ends, ends[edges], np.concatenate([[0.0], np.cumsum(lost)])[edges]))


def simulated(pool, slowdowns: np.ndarray, level: float, seed: int) -> tuple[list[pd.DataFrame], list[pd.DataFrame]]:
    """Return the rounds of plain decoding and of the drafter in a run, as they were and as the clock shows them."""
    dice = np.random.default_rng(seed)
    names = dice.choice(sorted(pool), PROMPTS)
    order = [(prompt, arm) for prompt in range(PROMPTS) for arm in dice.permutation(2)]
    rounds = pd.concat([pool[names[prompt]][arm] for prompt, arm in order], ignore_index=True)
    size = [len(pool[names[prompt]][arm]) for prompt, arm in order]
    rounds["prompt"] = np.repeat([f"{prompt:02d}" for prompt, _ in order], size)
    arm = np.repeat([arm for _, arm in order], size)
    seconds = rounds["round_s"].to_numpy()
    kind = dice.integers(1 + len(MILD))
    slow = dice.choice(slowdowns, len(rounds)) if kind == 0 else np.full(len(rounds), MILD[kind - 1])
    exposed = dice.integers(3)  # the drafter, plain decoding, or both
    own = np.where((arm == exposed) | (exposed == 2), seconds, 0.0)
    burst = BURSTS[dice.integers(len(BURSTS))]
    lost = overlaps(own, level, burst, float(slow.mean()), dice) * (slow - 1) if level else np.zeros(len(rounds))
    hit = [disturbed(*pair) for pair in zip(read(lost, seconds + lost), seconds + lost, strict=True)]
    clock = rounds.assign(disturbed=hit, **{name: rounds[name] * (1 + lost / seconds) for name in SECONDS})
    return [rounds[arm == each] for each in (0, 1)], [clock[arm == each] for each in (0, 1)]


@pytest.mark.timeout(3600)
def test_coverage_while_other_work_disturbs(tmp_path, log_figure):
    quiet = recorded("SPECDEC_QUIET_RUN", tmp_path / "quiet", "measurement.quiet=require")
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as burner:
        busy = recorded("SPECDEC_BUSY_RUN", tmp_path / "busy")
        burner.kill()
    arms = [quiet[quiet["method"] == method] for method, _ in ARMS]
    pool = {name: [arm.loc[arm["prompt"] == name, COLUMNS] for arm in arms] for name in arms[0]["prompt"].unique()}
    plain = busy[(busy["method"] == "baseline") & busy["disturbed"]]["round_s"] / arms[0]["round_s"].median()
    slowdowns = plain[plain > 1].to_numpy()
    truth = speedup(arms, 0).estimate
    for level in LEVELS:
        withheld, held, own, by_clock, wider, hits = 0, 0, 0, 0, [], []
        runs = RUNS // len(LEVELS)
        for seed in range(runs):
            as_they_were, clock = simulated(pool, slowdowns, level, seed)
            repaired = [undisturbed(table) for table in clock]
            machine = BusyMachine.of(
                Arms({arm: (lambda t=t: t) for arm, t in zip(ARMS, repaired, strict=True)}, clock[0])
            )
            by_clock += bool(speedup(clock, seed).contains(truth))
            if machine.doubt:
                withheld += 1
                continue
            interval, plainly = speedup(repaired, seed), speedup(as_they_were, seed)
            held += bool(interval.contains(truth))
            own += bool(interval.contains(plainly.estimate))
            wider.append(np.log(interval.high / interval.low) / np.log(plainly.high / plainly.low))
            hits.append(max(machine.hit.values(), default=0.0))
        given = runs - withheld
        log_figure(
            what="coverage of the 95% interval of the speedup",
            level=level,
            runs=runs,
            prompts=PROMPTS,
            slowdowns={f"{q}%": round(float(np.percentile(slowdowns, q)), 2) for q in (5, 50, 95)},
            by_clock=round(by_clock / runs, 4),
            repaired=round(held / given, 4),
            repaired_own=round(own / given, 4),
            withheld=round(withheld / runs, 4),
            interval_over_quiet={"median": round(float(np.median(wider)), 3), "largest": round(float(max(wider)), 3)},
            most_rounds_hit=round(float(np.mean(hits)), 3),
        )
        assert own / given >= 0.93 and held / given > 0.915 and (level > 0.2 or withheld / runs <= 1 / 3)
