"""The metrics of a run besides those of its rounds: arithmetic, losslessness, memory, the limit without overhead, and
other engines on the same prompts. From what the run wrote down, by the names that are logged.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd

from specdec.config import NULL
from specdec.theory.speedup import operations

from ..arms import Arms
from ..intervals import Columns, bootstrap, too_few
from ..read.facts import RunFacts
from ..rounds import drafted, prompt_sums
from .summary import Summary


def operation_metrics(summary: Summary, facts: RunFacts) -> dict[str, float]:
    """Return arithmetic per token over the baseline's (theory.md 2.2), by formula and as evaluated; nothing for a
    target that does none.
    """
    if facts.target_flops == 0:
        return {}
    c_ops = facts.drafter_flops / facts.target_flops
    sums = summary.primary.sums.sum()
    evaluated = (sums["nodes"] * (1 + c_ops) + sums["rounds"]) / sums["tokens"]
    return {
        "cost/c_ops": c_ops,
        "operations/capped_geometric": float(operations(summary.work.alpha, summary.work.primary_gamma, c_ops)),
        "operations/measured": float(evaluated),
    }


def total_variation(read: Callable[[], pd.DataFrame], facts: RunFacts, replicates: int, seed: int) -> dict[str, float]:
    """Return the mean distance of a lossy rule's law from that without a draft, over tested positions.

    Args:
        read: reads the rounds table, all of its columns.
    """
    if facts.lossless or facts.forced:
        return {}
    rounds = read()
    arm = drafted(rounds[rounds["gamma"] == facts.primary_gamma])
    sums = pd.DataFrame({"prompt": arm["prompt"], "tv": arm["tv"].map(sum), "tested": arm["tv"].map(len)})
    table = sums.groupby("prompt").sum().astype(float)
    tv = bootstrap(table, lambda s: {"tv": s["tv"] / s["tested"]}, replicates, seed, shares=("tv",))["tv"]
    return {name: value for name, value in tv.as_metrics("lossless/tv").items() if np.isfinite(value)}


def null_metrics(arms: Arms, replicates: int, seed: int) -> dict[str, float]:
    """Return `null/speedup`, the time per token of plain decoding over that of plain decoding measured once more, with
    its interval, and `null/floor`, how far the interval reaches from 1: what differs from 1 by less is noise.

    Empty without a control; no floor where too few prompts give one.
    """
    shared = arms.shared()
    control = shared.plain(NULL)
    if control.empty:
        return {}
    table = prompt_sums(control).join(prompt_sums(shared.plain()).add_suffix("_over"))

    def speedup(sums: Columns) -> dict[str, np.ndarray]:
        return {"speedup": sums["round_s_over"] / sums["tokens_over"] / (sums["round_s"] / sums["tokens"])}

    interval = bootstrap(table, speedup, replicates, seed)["speedup"]
    metrics = {name: value for name, value in interval.as_metrics("null/speedup").items() if np.isfinite(value)}
    if interval.known and not too_few(interval.prompts):
        metrics["null/floor"] = max(interval.high, 1 / interval.low) - 1
    return metrics


def limit_metrics(summary: Summary) -> dict[str, float]:
    """Return what an engine without overhead would reach at the measured v and g = gamma c (theory.md 2.1 and 8.3).

    `speedup.limit` is Omega / (v + g); `speedup.limit.realised` has the tokens per round that came out instead of
    Omega, so that chance and the ends of texts are in both sides of speedup over limit. `cost/overhead_share` is
    o / (v + g + o).
    """
    account = summary.primary.account
    bare = account.time["v"] + account.time["g"]
    return {
        "speedup.limit": account.value("omega") / bare,
        "speedup.limit.realised": account.value("tokens_per_round") / bare,
        "cost/overhead_share": account.time["o"] / (bare + account.time["o"]),
    }
