"""Measures what a lossy rule, or a trained backbone, does to the text of a whole run (`quality/*`).

From `rounds.parquet` (departure, otherwise: see `specdec.observe`) and `quality.parquet` (a line for each output: see
`specdec.session.output_quality`).
"""

import numpy as np
import pandas as pd

from specdec.config import BASELINE, ORIGINAL

from ..intervals import Columns, bootstrap
from ..rounds import drafted, shared_work

OUTPUTS = ("cell", "method", "gamma", "repeat", "prompt", "category", "tokens", "log_likelihood", "correct")
"""Columns of `quality.parquet`; correct is missing where no reference answer is known."""


def quality_metrics(
    rounds: pd.DataFrame, outputs: pd.DataFrame, gamma: int, replicates: int, seed: int
) -> dict[str, float]:
    """Return `quality/*` of the drafter at one gamma, `quality/baseline_*` of its baseline and, where the target was
    trained, `quality/original_*` of plain decoding with the model that it was; each with the `.ci_low` and `.ci_high`
    of a prompt bootstrap.

    log_likelihood: mean per token, in nats; log_likelihood.over_baseline is the drafter's mean less the baseline's, on
    the same prompts. tv: mean over the tokens of the text. decided_otherwise: mean over rounds with a proposal.
    gsm8k_exact_match: share of outputs. What the data cannot give is absent: tv and decided_otherwise where they are
    not known of every round, exact match without reference answers, likelihoods where an output has none.
    """
    rounds = shared_work(rounds)
    done = pd.MultiIndex.from_frame(rounds[["prompt", "repeat"]].drop_duplicates())
    outputs = outputs[pd.MultiIndex.from_frame(outputs[["prompt", "repeat"]]).isin(done)]
    arms = {"": [lines[lines["gamma"] == gamma] for lines in (drafted(rounds), drafted(outputs))]}
    for method in (BASELINE, ORIGINAL):
        arms[f"{method}_"] = [lines[lines["method"] == method] for lines in (rounds, outputs)]
    table = pd.concat([_sums(*arm).add_prefix(prefix) for prefix, arm in arms.items() if len(arm[0])], axis=1)
    possible = np.isfinite(table.filter(like="log_likelihood").to_numpy()).all()  # ln 0: what the model cannot write
    table = table.replace(-np.inf, 0.0)
    return {
        metric: value
        for name, interval in bootstrap(table, _values, replicates, seed, shares=_SHARES).items()
        for metric, value in interval.as_metrics(f"quality/{name}").items()
        if np.isfinite(value) and (possible or "log_likelihood" not in name)
    }


def _sums(rounds: pd.DataFrame, outputs: pd.DataFrame) -> pd.DataFrame:
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
    of_outputs = pd.DataFrame(
        {
            "prompt": outputs["prompt"],
            "tokens": outputs["tokens"],
            "log_likelihood": outputs["log_likelihood"],
            "correct": outputs["correct"].eq(True),
            "judged": outputs["correct"].notna(),
        }
    )
    return of_rounds.groupby("prompt").sum().join(of_outputs.groupby("prompt").sum()).astype(float)


_SHARES = (
    "decided_otherwise",
    *(f"{method}{share}" for method in ("", f"{BASELINE}_", f"{ORIGINAL}_") for share in ("tv", "gsm8k_exact_match")),
)


def _values(sums: Columns) -> dict[str, np.ndarray]:
    values = {"decided_otherwise": sums["otherwise"] / sums["decided"]}
    for method in ("", f"{BASELINE}_", f"{ORIGINAL}_"):
        if f"{method}tokens" not in sums:
            continue
        values[f"{method}log_likelihood"] = sums[f"{method}log_likelihood"] / sums[f"{method}tokens"]
        values[f"{method}tv"] = sums[f"{method}tv"] / sums[f"{method}tv_tokens"]
        values[f"{method}gsm8k_exact_match"] = sums[f"{method}correct"] / sums[f"{method}judged"]
    values["log_likelihood.over_baseline"] = values["log_likelihood"] - values["baseline_log_likelihood"]
    return values
