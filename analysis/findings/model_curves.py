"""Tokens per round and speedup over gamma, measured and by each model, with intervals.

One definition of each model: its headline metric `tokens_per_round.<model>` is the point of `curve/<model>` at the
primary gamma.

- capped_geometric: Omega(alpha, gamma) at `account/alpha`.
- priced: a speedup only, the same Omega over the measured time of its round: verification t(n) / t(1) = v and drafts
  gamma c = g. From the first to it is cost; from it to the measurement, acceptance and the loop's own time.
- position: acceptance by depth, fitted at the largest gamma to half of the prompts, predicts the other half; both
  halves in turn, so that no prompt is predicted by a model that has seen it (`acceptance.prediction`).
- replay: tokens over expected rounds of the drafter along the baseline's texts. The account's dependence and drift
  replay the drafter's own texts instead, because they explain one measurement factor by factor (theory.md 8.1).
"""

from collections.abc import Mapping
from math import isnan

import pandas as pd

from ..acceptance.prediction import HeldOutPrediction, Undetermined
from ..intervals import ENDS, Interval, bootstrap, per_round
from ..read.facts import RunFacts
from .summary import Summary

Curves = dict[str, dict[int, float]]
MODELS = ("measured", "capped_geometric", "priced", "position", "replay", "predicted")


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

    A model's speedup is its tokens per round over 1 + gamma c. The interval of the capped geometric's resamples c with
    the prompts, as the account does; those of position and replay hold c as measured. `priced` is a speedup alone.

    Args:
        held_out: the prediction of prompts that no model was fitted to, or why there is none.
        replay: as `Run.replay` reads it.
    """
    curves: Curves = {f"curve/{kind}{name}{end}": {} for name in MODELS for kind in ("", "speedup/") for end in ENDS}
    for gamma, arm in summary.arms.items():
        intervals = arm.account.intervals
        tokens, speedups = (
            {"measured": Interval.from_metrics(arm.metrics, quantity), "capped_geometric": intervals[formula]}
            for quantity, formula in (("tokens_per_round", "omega"), ("speedup", "formula"))
        )
        speedups["priced"] = intervals["priced"]
        modelled: dict[str, Interval] = {}
        if isinstance(held_out, HeldOutPrediction):
            lines = held_out.table[(held_out.table["model"] == "position") & (held_out.table["gamma"] == gamma)]
            for line in lines.itertuples():
                bounds = (line.predicted_low, line.predicted_high)
                modelled["position"] = Interval(line.predicted, *bounds, held_out.level, held_out.prompts)
        along = replay[(replay["kind"] == "baseline") & (replay["gamma"] == gamma)]
        if len(along) and not facts.simulated:  # recorded text is measured by its replay: no second opinion
            sums = along.groupby("prompt")[["tokens", "rounds"]].sum()
            possible = {"replay": per_round(gamma)}
            modelled |= bootstrap(
                sums, lambda s: {"replay": s["tokens"] / s["rounds"]}, replicates, seed, ranges=possible
            )
        step = 1 + gamma * arm.metrics["cost/c"]
        for name, interval in modelled.items():
            tokens[name] = interval
            speedups[name] = Interval(interval.estimate / step, interval.low / step, interval.high / step)
        if gamma in facts.predicted:
            speedups["predicted"] = Interval(facts.predicted[gamma])
        for kind, models in (("", tokens), ("speedup/", speedups)):
            for name, interval in models.items():
                for key, value in interval.as_metrics(f"curve/{kind}{name}").items():
                    if not isnan(value):
                        curves[key][gamma] = value
    return {key: curve for key, curve in curves.items() if curve}


def model_metrics(curves: Mapping[str, Mapping[int, float]], gamma: int) -> dict[str, float]:
    """Return `tokens_per_round.<model>` at one gamma, as the curves have it."""
    points = {name: curves.get(f"curve/{name}", {}).get(gamma) for name in MODELS if name != "measured"}
    return {f"tokens_per_round.{name}": value for name, value in points.items() if value is not None}
