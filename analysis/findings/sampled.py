"""Measures what speculation gives at a temperature beside a greedy run (`sampled/*`), from `sampled.parquet`.

Its baseline decoded the same prompts at the same temperature, in turn with the drafter. The texts are other ones than
the baseline's, because both are drawn: they follow one law, and speedup compares the time of a token.
"""

import numpy as np
import pandas as pd

from specdec.config import BASELINE

from ..intervals import Columns, bootstrap

FAMILY = "sampled/"
COLUMNS = (
    "temperature",
    "method",
    "gamma",
    "repeat",
    "prompt",
    "category",
    "tokens",
    "rounds",
    "accepted",
    "rejected",
    "prefill_s",
    "decode_s",
    "flagged",
)
"""Columns of `sampled.parquet`, a line for each text: counts and seconds are sums over its rounds."""

_SUMS = ["tokens", "rounds", "accepted", "rejected", "prefill_s", "decode_s"]


def sampled_metrics(texts: pd.DataFrame, replicates: int, seed: int) -> dict[str, float]:
    """Return `sampled/*`: temperature, prompts, speedup, speedup.end_to_end, tokens_per_round and alpha.mle of the
    primary structure, with the `.ci_low` and `.ci_high` of a prompt bootstrap, and repetition.share, of prompts with a
    text that falls into a loop. Repeats are pooled; empty without texts, and what the data cannot give is absent.
    """
    if texts.empty:
        return {}
    plain = texts["method"] == BASELINE
    parts = [texts[which].groupby("prompt")[_SUMS].sum() for which in (~plain, plain)]
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

    for name, interval in bootstrap(sums, values, replicates, seed).items():
        metrics |= interval.as_metrics(name)
    metrics["repetition.share"] = float(texts.groupby("prompt")["flagged"].any().mean())
    return {f"{FAMILY}{name}": value for name, value in metrics.items() if np.isfinite(value)}
