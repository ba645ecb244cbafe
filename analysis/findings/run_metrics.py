"""The metrics of a run besides those of its rounds, by the names that are logged: arithmetic, losslessness, the
machine's noise, the limit without overhead, the quality of texts, texts that were sampled, and other engines.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from specdec.config import BASELINE, NULL, ORIGINAL
from specdec.theory.speedup import operations

from ..arms import Arms
from ..comparisons import finite
from ..intervals import ANY, POSITIVE, SHARE, Columns, Range, Statistic, bootstrap, interval_of, per_round
from ..read.facts import RunFacts
from ..rounds import drafted, prompt_sums
from .summary import Summary

OUTPUTS = ("cell", "method", "gamma", "repeat", "prompt", "category", "tokens", "log_likelihood", "correct")
"""Columns of `quality.parquet`, a line for each output (see `specdec.session.rescoring`); correct is missing where
no reference answer is known."""
SAMPLED = (
    *("temperature", "method", "gamma", "repeat", "prompt", "category"),
    *("tokens", "rounds", "accepted", "rejected", "prefill_s", "decode_s", "flagged"),
)
"""Columns of `sampled.parquet`, a line for each text that was drawn at a temperature beside a greedy run: counts and
seconds are sums over its rounds."""
_SAMPLED_SUMS = ["tokens", "rounds", "accepted", "rejected", "prefill_s", "decode_s"]


def _known(
    family: str, table: pd.DataFrame, statistic: Statistic, replicates: int, ranges: Mapping[str, Range]
) -> dict[str, float]:
    """Return the values of a statistic with their bounds as metrics of a family, those that the data can give."""
    intervals = bootstrap(table, statistic, replicates, ranges=ranges)
    return finite(
        {key: value for name, its in intervals.items() for key, value in its.as_metrics(family + name).items()}
    )


def operation_metrics(summary: Summary, facts: RunFacts) -> dict[str, float]:
    """Return arithmetic per token over the baseline's, if there is any (theory.md 2.2), by formula and evaluated."""
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


def total_variation(read: Callable[[], pd.DataFrame], facts: RunFacts, replicates: int) -> dict[str, float]:
    """Return the mean distance of a lossy rule's law from that without a draft, over tested positions.

    read: reads the rounds table, all of its columns.
    """
    if facts.lossless or facts.forced:
        return {}
    rounds = read()
    arm = drafted(rounds[rounds["gamma"] == facts.primary_gamma])
    sums = pd.DataFrame({"prompt": arm["prompt"], "tv": arm["tv"].map(sum), "tested": arm["tv"].map(len)})
    table = sums.groupby("prompt").sum().astype(float)
    return _known("lossless/", table, lambda s: {"tv": s["tv"] / s["tested"]}, replicates, {"tv": SHARE})


def null_metrics(arms: Arms, replicates: int) -> dict[str, float]:
    """Return `null/speedup`, the time per token of plain decoding over that of plain decoding measured once more, with
    its interval, and `null/floor`, how far the interval reaches from 1: what differs from 1 by less is noise. Both are
    of the `null/prompts` prompts that the control has decoded. Empty without a control; no floor for too few prompts.
    """
    if not any(method == NULL for method, _ in arms):
        return {}
    try:
        shared = arms.of_methods([BASELINE, NULL]).shared()
    except ValueError:  # it was interrupted before the baseline was done
        return {}
    control = shared.plain(NULL)
    table = prompt_sums(control).join(prompt_sums(shared.plain()).add_suffix("_over"))
    interval = interval_of(
        table, lambda s: s["round_s_over"] / s["tokens_over"] / (s["round_s"] / s["tokens"]), POSITIVE, replicates
    )
    metrics = finite(interval.as_metrics("null/speedup")) | {"null/prompts": float(len(table))}
    if interval.known:
        metrics["null/floor"] = max(interval.high, 1 / interval.low) - 1
    return metrics


def limit_metrics(summary: Summary) -> dict[str, float]:
    """Return what an engine without overhead would reach at the measured v and g = gamma c (theory.md 2.1 and 8.3):
    `speedup.limit` is Omega / (v + g); `speedup.limit.realised` has the tokens per round that came out instead of
    Omega, so that chance and the ends of texts are in both sides of speedup over limit; `cost/overhead_share` is o / (v
    + g + o).
    """
    account = summary.primary.account
    bare = account.time["v"] + account.time["g"]
    return {
        "speedup.limit": account.value("priced"),
        "speedup.limit.realised": account.value("tokens_per_round") / bare,
        "cost/overhead_share": account.time["o"] / (bare + account.time["o"]),
    }


def quality_metrics(rounds: pd.DataFrame, outputs: pd.DataFrame, gamma: int, replicates: int) -> dict[str, float]:
    """Return `quality/*`, what a lossy rule or a trained backbone does to the text of a run: of the drafter at one
    gamma, `quality/baseline_*` of its baseline and, where the target was trained, `quality/original_*` of plain
    decoding with the model that it was; each with the `.ci_low` and `.ci_high` of a prompt bootstrap.

    log_likelihood: mean per token, in nats; log_likelihood.over_baseline: the drafter's less the baseline's, on the
    same prompts. tv: mean over the tokens of the text. decided_otherwise: mean over rounds with a proposal.
    gsm8k_exact_match: share of outputs. What the data cannot give is absent.
    """
    rounds = pd.concat(Arms.of(rounds).shared().values()).sort_index()  # on the prompts that every method has done
    done = pd.MultiIndex.from_frame(rounds[["prompt", "repeat"]].drop_duplicates())
    outputs = outputs[pd.MultiIndex.from_frame(outputs[["prompt", "repeat"]]).isin(done)]
    arms = {"": [lines[lines["gamma"] == gamma] for lines in (drafted(rounds), drafted(outputs))]}
    for method in (BASELINE, ORIGINAL):
        arms[f"{method}_"] = [lines[lines["method"] == method] for lines in (rounds, outputs)]
    sums = {prefix: _quality_sums(*arm) for prefix, arm in arms.items() if len(arm[0])}
    table = pd.concat([part.add_prefix(prefix) for prefix, part in sums.items()], axis=1)
    possible = np.isfinite(table.filter(like="log_likelihood").to_numpy()).all()  # ln 0: what the model cannot write
    ranges = {"decided_otherwise": SHARE, "log_likelihood.over_baseline": ANY}
    for prefix in sums:
        ranges |= {f"{prefix}tv": SHARE, f"{prefix}gsm8k_exact_match": SHARE}
        ranges[f"{prefix}log_likelihood"] = Range(high=0.0)

    def values(s: Columns) -> dict[str, np.ndarray]:
        found = {"decided_otherwise": s["otherwise"] / s["decided"]}
        for prefix in sums:
            found[f"{prefix}log_likelihood"] = s[f"{prefix}log_likelihood"] / s[f"{prefix}tokens"]
            found[f"{prefix}tv"] = s[f"{prefix}tv"] / s[f"{prefix}tv_tokens"]
            found[f"{prefix}gsm8k_exact_match"] = s[f"{prefix}correct"] / s[f"{prefix}judged"]
        found["log_likelihood.over_baseline"] = found["log_likelihood"] - found["baseline_log_likelihood"]
        return found

    metrics = _known("quality/", table.replace(-np.inf, 0.0), values, replicates, ranges)
    return {name: value for name, value in metrics.items() if possible or "log_likelihood" not in name}


def _quality_sums(rounds: pd.DataFrame, outputs: pd.DataFrame) -> pd.DataFrame:
    """Return sums per prompt (index) of one method; zeros for what is not known of all of its rounds."""
    known = rounds["departure"].map(len)
    decided = rounds["otherwise"].notna()
    of_rounds = pd.DataFrame(
        {
            "prompt": rounds["prompt"],
            "tv": rounds["departure"].map(sum),
            "tv_tokens": known * (known == rounds["committed"]).all(),
            "otherwise": rounds["otherwise"].fillna(0.0),
            "decided": decided * (decided == (rounds["offered"] > 0)).all(),
        }
    )
    of_outputs = outputs[["prompt", "tokens", "log_likelihood"]].assign(
        correct=outputs["correct"].eq(True), judged=outputs["correct"].notna()
    )
    return of_rounds.groupby("prompt").sum().join(of_outputs.groupby("prompt").sum()).astype(float)


def sampled_metrics(texts: pd.DataFrame, replicates: int, timed: bool = True) -> dict[str, float]:
    """Return `sampled/*`: temperature, prompts, speedup, speedup.end_to_end, tokens_per_round and alpha.mle of the
    primary structure, with the `.ci_low` and `.ci_high` of a prompt bootstrap, and repetition.share, of prompts with a
    text that falls into a loop. Repeats are pooled; empty without texts.

    Its baseline decoded the same prompts at the same temperature, in turn with the drafter. Both texts are drawn from
    one law and differ, so speedup compares the time of a token. timed: False where the machine was too busy for
    intervals of times.
    """
    if texts.empty:
        return {}
    plain = texts["method"] == BASELINE
    parts = [texts[which].groupby("prompt")[_SAMPLED_SUMS].sum() for which in (~plain, plain)]
    sums = parts[0].join(parts[1].add_prefix("plain_"), how="inner").astype(float)
    metrics = {"temperature": float(texts["temperature"].iloc[0]), "prompts": float(len(sums))}

    def values(s: Columns) -> dict[str, np.ndarray]:
        ours, theirs, more = s["decode_s"], s["plain_decode_s"], s["tokens"] / s["plain_tokens"]
        return {
            "speedup": more * theirs / ours,
            "speedup.end_to_end": more * (theirs + s["plain_prefill_s"]) / (ours + s["prefill_s"]),
            "tokens_per_round": s["tokens"] / s["rounds"],
            "alpha.mle": s["accepted"] / (s["accepted"] + s["rejected"]),
        }

    metrics["repetition.share"] = float(texts.groupby("prompt")["flagged"].any().mean())
    ranges = {"tokens_per_round": per_round(int(texts.loc[~plain, "gamma"].max())), "alpha.mle": SHARE}
    measured = _known("sampled/", sums, values, replicates, ranges)
    if not timed:
        measured = {name: value for name, value in measured.items() if "speedup" not in name or ".ci_" not in name}
    return {f"sampled/{name}": value for name, value in metrics.items()} | measured


def peer_metrics(
    lines: Sequence[Mapping[str, Any]], read: Callable[[], pd.DataFrame], greedy: bool, replicates: int
) -> dict[str, float]:
    """Return each peer's time per token over that of our arm which does the same, prefill included on both sides, with
    its prompt bootstrap; under greedy also the share of the peer's outputs that are our baseline's, token for token.

    lines: `generations` of `peers.json`; read: reads our generations, with their tokens.
    """
    if not lines:
        return {}
    generations = read().assign(seconds=lambda t: t["prefill_s"] + t["decode_s"])
    baseline = generations[generations["method"] == BASELINE].set_index(["prompt", "repeat"])["generated_token_ids"]
    metrics: dict[str, float] = {}
    for (name, method, gamma), peer in pd.DataFrame(list(lines)).groupby(["peer", "ours_method", "ours_gamma"]):
        ours = generations[(generations["method"] == method) & (generations["gamma"] == gamma)]
        sums, our_sums = (table.groupby("prompt")[["tokens", "seconds"]].sum() for table in (peer, ours))
        if greedy:
            texts = peer.set_index(["prompt", "repeat"])["generated_token_ids"]
            same = [text == baseline[work] for work, text in texts.items()]
            metrics[f"peer/{name}.identical"] = sum(same) / len(same)
        table = sums.join(our_sums.add_suffix("_ours"))
        ratio = interval_of(
            table, lambda s: s["seconds"] / s["tokens"] / (s["seconds_ours"] / s["tokens_ours"]), POSITIVE, replicates
        )
        metrics |= ratio.as_metrics(f"peer/{name}.ratio")
    return metrics
