"""Tokens per round and speedup over gamma, measured and by each model, with intervals.

One definition of each model: its headline metric `tokens_per_round.<model>` is the point of `curve/<model>` at the
primary gamma.

- capped_geometric: Omega(alpha, gamma) at `account/alpha`, the textbook formula.
- priced: a speedup only, the same Omega over the measured time of its round: verification t(n) / t(1) = v and drafts
  gamma c = g. From the formula to it is cost; from it to the measurement, acceptance and the loop's own time.
- position: acceptance by depth, fitted at the largest gamma to half of the prompts, predicts the other half; both
  halves in turn, so that no prompt is predicted by a model that has seen it (`acceptance.prediction`).
- replay: tokens over expected rounds of the drafter along the baseline's texts. The account's dependence and drift
  replay the drafter's own texts instead, because they explain one measurement factor by factor (theory.md 8.1).
"""

from collections.abc import Mapping
from math import isnan

import numpy as np
import pandas as pd

from ..acceptance.prediction import HeldOutPrediction, Undetermined
from ..intervals import Columns, Interval, bootstrap
from ..read.facts import RunFacts
from .summary import ArmSummary, Summary

Curves = dict[str, dict[int, float]]
MODELS = ("measured", "capped_geometric", "priced", "position", "replay", "predicted")
ENDS = ("", ".ci_low", ".ci_high")


def model_curves(
    summary: Summary,
    held_out: HeldOutPrediction | Undetermined,
    replay: pd.DataFrame,
    facts: RunFacts,
    replicates: int,
    seed: int,
) -> Curves:
    """Return the curves by name: `curve/<model>` in tokens per round, `curve/speedup/<model>`, and the 95% interval of
    each as `.ci_low` and `.ci_high`, where the data give one. A model that the data cannot determine has none.

    A model's speedup is its tokens per round over 1 + gamma c. The interval of the textbook formula's resamples c with
    the prompts, as the account does; those of position and replay hold c as measured. `priced` is a speedup alone.

    Args:
        held_out: the prediction of prompts that no model was fitted to, or why there is none.
        replay: as `Run.replay` reads it.
    """
    curves: Curves = {f"curve/{kind}{name}{end}": {} for name in MODELS for kind in ("", "speedup/") for end in ENDS}
    for gamma, arm in summary.arms.items():
        tokens, speedups = _of_arm(arm)
        modelled = {"position": _position(held_out, gamma)}
        if not facts.simulated:  # recorded text is measured by its replay: no second opinion
            modelled["replay"] = _replayed(replay, gamma, replicates, seed)
        step = 1 + gamma * arm.metrics["cost/c"]
        for name, interval in modelled.items():
            if interval is not None:
                tokens[name] = interval
                speedups[name] = Interval(interval.estimate / step, interval.low / step, interval.high / step)
        if gamma in facts.predicted:
            speedups["predicted"] = Interval(facts.predicted[gamma])
        for kind, found in (("", tokens), ("speedup/", speedups)):
            for name, interval in found.items():
                for key, value in interval.as_metrics(f"curve/{kind}{name}").items():
                    if not isnan(value):
                        curves[key][gamma] = value
    return {key: curve for key, curve in curves.items() if curve}


def model_metrics(curves: Mapping[str, Mapping[int, float]], gamma: int) -> dict[str, float]:
    """Return `tokens_per_round.<model>` at one gamma, as the curves have it."""
    points = {name: curves.get(f"curve/{name}", {}).get(gamma) for name in MODELS if name != "measured"}
    return {f"tokens_per_round.{name}": value for name, value in points.items() if value is not None}


def _of_arm(arm: ArmSummary) -> tuple[dict[str, Interval], dict[str, Interval]]:
    """Return what was measured and what the textbook formula says, in tokens per round and as speedup."""
    intervals = arm.account.intervals
    tokens = {
        "measured": Interval.from_metrics(arm.metrics, "tokens_per_round"),
        "capped_geometric": intervals["omega"],
    }
    speedups = {
        "measured": Interval.from_metrics(arm.metrics, "speedup"),
        "capped_geometric": intervals["formula"],
        "priced": intervals["priced"],
    }
    return tokens, speedups


def _position(held_out: HeldOutPrediction | Undetermined, gamma: int) -> Interval | None:
    if isinstance(held_out, Undetermined):
        return None
    table = held_out.table
    lines = table[(table["model"] == "position") & (table["gamma"] == gamma)]
    for line in lines.itertuples():
        return Interval(line.predicted, line.predicted_low, line.predicted_high, held_out.level, held_out.prompts)
    return None


def _replayed(replay: pd.DataFrame, gamma: int, replicates: int, seed: int) -> Interval | None:
    lines = replay[(replay["kind"] == "baseline") & (replay["gamma"] == gamma)]
    if lines.empty:
        return None
    sums = lines.groupby("prompt")[["tokens", "rounds"]].sum()

    def tokens_per_round(totals: Columns) -> dict[str, np.ndarray]:
        return {"replay": totals["tokens"] / totals["rounds"]}

    return bootstrap(sums, tokens_per_round, replicates, seed)["replay"]
