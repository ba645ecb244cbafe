"""The metrics of a run besides those of its rounds: arithmetic, losslessness, memory, the limit without overhead, and
other engines on the same prompts. From what the run wrote down, by the names that are logged.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from specdec.config import BASELINE
from specdec.theory.capped_geometric import tokens_per_round
from specdec.theory.speedup import operations

from ..intervals import Columns, bootstrap
from ..read.facts import RunFacts, RunStatus, SessionFacts
from ..rounds import drafted
from .summary import Summary


def operation_metrics(summary: Summary, facts: RunFacts) -> dict[str, float]:
    """Return arithmetic per token over the baseline's (theory.md 2.2), by formula and as evaluated; nothing for a
    target that does none.
    """
    if facts.target_flops == 0:
        return {}
    c_ops = facts.drafter_flops / facts.target_flops
    sums = summary.arms[summary.primary_gamma].sums.sum()
    evaluated = (sums["nodes"] * (1 + c_ops) + sums["rounds"]) / sums["tokens"]
    return {
        "cost/c_ops": c_ops,
        "operations/capped_geometric": float(operations(summary.alpha, summary.primary_gamma, c_ops)),
        "operations/measured": float(evaluated),
    }


def lossless_metrics(session: SessionFacts) -> dict[str, float]:
    """Return the share of outputs that equal the baseline's, and how many parted; nothing where none was compared."""
    if session.compared == 0:
        return {}
    return {
        "lossless/identical": session.identical / session.compared,
        "lossless/divergences": float(session.compared - session.identical),
        "lossless/unexplained": float(session.unexplained),
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
    tv = bootstrap(table, lambda s: {"tv": s["tv"] / s["tested"]}, replicates, seed)["tv"]
    return {name: value for name, value in tv.as_metrics("lossless/tv").items() if np.isfinite(value)}


def limit_metrics(summary: Summary) -> dict[str, float]:
    """Return what an engine without overhead would reach at the measured v and g = gamma c (theory.md 2.1 and 8.3).

    `speedup.limit` is Omega / (v + g); `speedup.limit.realised` has the tokens per round that came out instead of
    Omega, so that chance and the ends of texts are in both sides of speedup over limit. `cost/overhead_share` is
    o / (v + g + o).
    """
    account = summary.arms[summary.primary_gamma].account
    bare = account.time["v"] + account.time["g"]
    return {
        "speedup.limit": float(tokens_per_round(summary.alpha, summary.primary_gamma)) / bare,
        "speedup.limit.realised": account.tokens_per_round / bare,
        "cost/overhead_share": account.time["o"] / (bare + account.time["o"]),
    }


def memory_metrics(session: SessionFacts, environment: Mapping[str, Any]) -> dict[str, float]:
    """Return the peak, and the target's weights and largest cache, which it cannot be below."""
    return {
        "memory/peak_mb": session.peak_mb,
        "memory/weights_mb": environment.get("model", {}).get("weight_bytes", 0) / 2**20,
        "memory/cache_mb": session.cache_bytes / 2**20,
    }


def prompt_metrics(standing: RunStatus | None) -> dict[str, float]:
    """Return the prompts that were decoded, each once for every turn and repeat, and those that the time budget left
    out.
    """
    if standing is None:
        return {}  # an earlier version's run
    return {"prompts/done": standing.prompts_done, "prompts/left_out": standing.left_out}


def peer_metrics(
    lines: Sequence[Mapping[str, Any]], read: Callable[[], pd.DataFrame], greedy: bool, replicates: int, seed: int
) -> dict[str, float]:
    """Return each peer's time per token over that of our arm which does the same, prefill included on both sides, with
    its prompt bootstrap; under greedy also the share of the peer's outputs that are our baseline's, token for token.

    Args:
        lines: what the peers wrote, as `peers.json` has it.
        read: reads our generations, with their tokens.
    """
    if not lines:
        return {}
    generations = read().assign(seconds=lambda t: t["prefill_s"] + t["decode_s"])
    baseline = generations[generations["method"] == BASELINE].set_index(["prompt", "repeat"])["generated_token_ids"]
    metrics: dict[str, float] = {}
    for (name, method, gamma), peer in pd.DataFrame(list(lines)).groupby(["peer", "ours_method", "ours_gamma"]):
        ours = generations[(generations["method"] == method) & (generations["gamma"] == gamma)]
        sums, our_sums = (each.groupby("prompt")[["tokens", "seconds"]].sum() for each in (peer, ours))
        if greedy:
            texts = peer.set_index(["prompt", "repeat"])["generated_token_ids"]
            same = [text == baseline[work] for work, text in texts.items()]
            metrics[f"peer/{name}.identical"] = sum(same) / len(same)
        ratio = bootstrap(sums.join(our_sums.add_suffix("_ours")), _ratio, replicates, seed)["ratio"]
        metrics |= ratio.as_metrics(f"peer/{name}.ratio")
    return metrics


def _ratio(sums: Columns) -> dict[str, np.ndarray]:
    return {"ratio": sums["seconds"] / sums["tokens"] / (sums["seconds_ours"] / sums["tokens_ours"])}
