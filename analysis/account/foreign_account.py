"""The sums behind the account of imported rounds: from the capped geometric to measured tokens per round.

Everything rests on sums by prompt at each gamma, a few numbers per prompt, because all gammas of a long trace would not
fit into memory. Where lengths are by position the factor `dependence` of a run's account falls into three: differences
between texts, dependence along a text, and what a draft's depth does.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from specdec.theory.capped_geometric import tokens_per_round

from ..intervals import SHARE, Columns, Interval, bootstrap, per_round
from ..read.runs import Run
from ..rounds import prompt_sums
from .gap_account import account_table, shared_alpha


def foreign_sums(run: Run) -> Mapping[int, pd.DataFrame]:
    """Return the sums of an imported data set by prompt (index), by gamma.

    They are those of `account_table`, with what `foreign_intervals` needs, and with lengths by position also own_rounds
    and along_rounds: expected where each text has its own alpha, and counted where every draft token is as good as a
    first one. Without such lengths alpha is fitted to the rounds; where nothing was ever tested there is none.
    """
    arms, text_alpha, replay = run.arms(), run.alpha_sums(), run.replay()
    tables = {}
    for gamma, rounds in arms.by_gamma().items():
        alpha = shared_alpha(rounds, None)[1] if text_alpha.empty else text_alpha
        counts = prompt_sums(rounds)[["accepted", "rejected", "tested", "offered"]]
        full = (rounds["accepted"] == rounds["offered"]).groupby(rounds["prompt"], observed=True).sum()
        texts = arms.texts[arms.texts["gamma"] == gamma]
        requests = (texts["tokens"] / texts["rounds"]).groupby(texts["prompt"]).agg(["size", "sum"])
        requests = requests.set_axis(["requests", "request_ratio"], axis=1)
        full.index = full.index.astype("str")
        table = account_table(rounds, None, gamma, alpha_sums=alpha).join([counts, full.rename("full"), requests])
        if not text_alpha.empty:
            own = (table["alpha_numerator"] / table["alpha_denominator"]).to_numpy()
            caps = [table[f"cap_{cap}"] * tokens_per_round(own, cap) for cap in range(gamma + 1)]
            along = replay[replay["gamma"] == gamma].groupby("prompt")["rounds"].sum()
            expected = np.sum(caps, axis=0) / table["rounds"]
            table = table.assign(along_rounds=along, own_rounds=table["tokens"] / expected)
        tables[gamma] = table.astype(float)
    return tables


def foreign_intervals(table: pd.DataFrame, gamma: int, replicates: int) -> dict[str, Interval]:
    """Return what pages on imports show besides the account; table: of `foreign_sums`, or a part of its prompts."""

    def statistic(sums: Columns) -> dict[str, np.ndarray]:
        return {
            "alpha_mle": sums["accepted"] / sums["tested"],
            "accepted_per_offered": sums["accepted"] / sums["offered"],
            "full": sums["full"] / sums["rounds"],
            "requests_mean": sums["request_ratio"] / sums["requests"],
        }

    shares = dict.fromkeys(("alpha_mle", "accepted_per_offered", "full"), SHARE)
    return bootstrap(table, statistic, replicates, ranges={**shares, "requests_mean": per_round(gamma)})
