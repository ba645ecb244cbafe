"""Speed as the papers on Medusa, Hydra, REST and Lookahead define it, from the sums behind our own figures.

acceleration_rate: tokens over decoding steps (Medusa, 2401.10774, Table 1; Hydra's average acceptance length).
step_overhead: seconds of a step over seconds of a step of plain decoding (Medusa), which is one token.
speedup: their quotient (Medusa); ours, prefill apart, is that number.
compression_ratio: tokens over calls of the target (Lookahead, 2402.02057; Spec-Bench's mean accepted tokens).

A round is one call of the target, and the call on the prompt gives no token, so rate and ratio are one number here, and
both are 1 for plain decoding. Tokens are those committed: Spec-Bench's logs count the last step before it is cut at the
end token, so its figures are slightly higher. Plain decoding is that of the target itself, or, in names that end in
`.original`, that of the model which the target was before it was trained.
"""

import numpy as np
import pandas as pd

from ..intervals import Columns

RATES = {  # metric: what a table calls it
    "acceleration_rate": "acceleration rate",
    "step_overhead": "overhead",
    "speedup": "speedup",
    "compression_ratio": "compression ratio",
    "throughput/tokens_per_s": "tokens/s",
    "throughput/baseline_tokens_per_s": "baseline tokens/s",
}
AGAINST_ORIGINAL = {
    "step_overhead.original": "overhead (original)",
    "speedup.original": "speedup (original)",
    "throughput/original_tokens_per_s": "original tokens/s",
}
PAPERS = (*RATES, *AGAINST_ORIGINAL)
MULTI_TURN = "mt_bench"  # what Spec-Bench calls MT-Bench's eight categories together, one of its six subtasks
MT_BENCH = frozenset({"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"})
SPEC_BENCH = frozenset({"translation", "summarization", "qa", "math_reasoning", "rag"})  # its other subtasks


def paper_values(sums: Columns) -> dict[str, np.ndarray]:
    """Return the metrics of PAPERS but `speedup` from sums of a run, of each prompt [P], or of the replicates [B].

    Metrics against the original model need `original_tokens` and `original_round_s`.
    """
    step_s = sums["round_s"] / sums["rounds"]
    baseline_s = sums["baseline_round_s"] / sums["baseline_tokens"]
    rate = sums["tokens"] / sums["rounds"]
    values = {
        "acceleration_rate": rate,
        "step_overhead": step_s / baseline_s,
        "compression_ratio": rate,
        "throughput/tokens_per_s": sums["tokens"] / sums["round_s"],
        "throughput/baseline_tokens_per_s": 1 / baseline_s,
    }
    if "original_round_s" in sums:
        original_s = sums["original_round_s"] / sums["original_tokens"]
        values |= {
            "step_overhead.original": step_s / original_s,
            "speedup.original": original_s * sums["tokens"] / sums["round_s"],
            "throughput/original_tokens_per_s": 1 / original_s,
        }
    return values


def category_members(names: pd.Series) -> dict[str, pd.Series]:
    """Return which prompts are in each category, by name; none where there is one category only.

    Args:
        names: category of each prompt (index), "" for a prompt without one, which is in "none".
    Returns:
        Booleans over the prompts. On Spec-Bench MT-Bench's categories are also there together, as MULTI_TURN.
    """
    known = sorted(set(names))
    if len(known) < 2:
        return {}
    members = {name or "none": names == name for name in known}
    of_mt_bench = MT_BENCH.intersection(known)
    # Spec-Bench's: several of MT-Bench's categories, and some that are not.
    if len(of_mt_bench) > 1 and of_mt_bench < set(known) <= MT_BENCH | SPEC_BENCH:
        members[MULTI_TURN] = names.isin(MT_BENCH)
    return members
