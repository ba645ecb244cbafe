"""The account of imported rounds, as far as acceptance goes: from the textbook formula to measured tokens per round.

Everything rests on sums by prompt at each gamma, a few numbers per prompt: a trace of a million tokens has ten million
rounds over its gammas, and their table would not fit. Where lengths are by position the factor `dependence` of a run's
account falls into three: differences between texts, dependence along a text, and what a draft's depth does.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from specdec.theory.capped_geometric import tokens_per_round

from ..arms import WORK
from ..intervals import Columns, Interval, bootstrap
from ..read.foreign.imported import Imported, PositionText, walked
from .formula_gap import FormulaGap
from .gap_account import shared_alpha

SHOWN = 32  # gammas shown at most: all up to here, for sources whose drafts are longer
PARTS = {  # factors that `dependence` falls into: what each compares
    "texts": "each text at its own alpha",
    "along": "agreement as it lies along each text, not spread evenly",
    "depth": "tokens deep in a draft, not each drafted afresh",
}


@dataclass(frozen=True)
class ForeignSums:
    """The sums of an imported data set by prompt (index), at every gamma that is shown.

    Attributes:
        tables: by gamma. tokens, rounds, accepted, rejected, tested, offered; full (rounds that accepted all of an
            offer); cap_0 ... cap_gamma as in `account_table`; alpha_numerator, alpha_denominator; requests (texts) and
            request_ratio (sum of their tokens per round); with lengths by position also own_rounds and along_rounds:
            expected where each text has its own alpha, and counted where every draft token is as good as a first one.
        texts: gamma, prompt, repeat, tokens, rounds of every text.
        alpha_of_text: True if alpha is the share of positions whose first draft token agrees; else it is fitted to the
            rounds of this gamma.
    """

    tables: Mapping[int, pd.DataFrame]
    texts: pd.DataFrame
    alpha_of_text: bool


def shown_gamma(source: Imported) -> int:
    """Return the gamma that a page is about: what was given, or the longest offer as far as gammas are shown."""
    if source.by_position is not None and source.gamma == source.by_position.longest:
        return min(source.gamma, SHOWN)
    return source.gamma


def foreign_sums(source: Imported) -> ForeignSums:
    """Return the sums of a data set: at every gamma up to the longest offer where lengths are by position."""
    if source.by_position is None:
        table, lines = _round_sums(source.rounds, source.gamma)
        _, alpha = shared_alpha(source.rounds, None)
        return ForeignSums({source.gamma: _with_alpha(table, alpha)}, lines, alpha_of_text=False)
    texts = [text for text in source.by_position.texts if len(text.lengths)]
    alpha = pd.DataFrame(
        [(text.prompt, int((text.lengths > 1).sum()), len(text.lengths)) for text in texts],
        columns=["prompt", "numerator", "denominator"],
    )
    singles = [_agreement(text) for text in texts]
    gammas = sorted({*range(1, min(source.by_position.longest, SHOWN) + 1), shown_gamma(source)})
    tables, lines = {}, []
    for gamma in gammas:
        walked_at = _walk_texts(texts, gamma)
        lines.append(walked_at[[*WORK, "tokens", "rounds"]].assign(gamma=gamma))
        table = _with_alpha(_by_prompt(walked_at), alpha)
        along = _by_prompt(_walk_texts(singles, gamma))["rounds"]
        own = table["alpha_numerator"] / table["alpha_denominator"]
        caps = [table[f"cap_{cap}"] * tokens_per_round(own.to_numpy(), cap) for cap in range(gamma + 1)]
        expected = np.sum(caps, axis=0) / table["rounds"]
        tables[gamma] = table.assign(along_rounds=along, own_rounds=table["tokens"] / expected)
    return ForeignSums(tables, pd.concat(lines), alpha_of_text=True)


def _with_alpha(table: pd.DataFrame, alpha: pd.DataFrame | None) -> pd.DataFrame:
    """Join the sums behind alpha; a data set in which nothing was ever tested has none."""
    if alpha is None:
        return table
    return table.join(alpha.groupby("prompt")[["numerator", "denominator"]].sum().add_prefix("alpha_")).fillna(0.0)


def _agreement(text: PositionText) -> PositionText:
    """Return the text with lengths as they would be if a draft's later tokens agreed where first ones do."""
    agrees = text.lengths > 1
    size = len(agrees)
    places = np.where(agrees, size, np.arange(size))
    stops = np.minimum.accumulate(places[::-1])[::-1]  # the next position that disagrees
    lengths = (stops - np.arange(size) + 1).astype(np.int32)
    return PositionText(text.prompt, text.category, text.repeat, lengths, text.context, text.ended)


def _walk_texts(texts: list[PositionText], gamma: int) -> pd.DataFrame:
    """Walk every text at one gamma; return its prompt, its repeat and its sums, a line each."""
    rows, caps = [], np.zeros((len(texts), gamma + 1))
    for place, text in enumerate(texts):
        rounds = walked(text, gamma)
        accepted, offered, committed = (
            np.asarray(each) for each in (rounds.accepted, rounds.offered, rounds.committed)
        )
        left = committed[::-1].cumsum()[::-1]
        caps[place] = np.bincount(np.minimum(offered, left - 1), minlength=gamma + 1)
        rejected = int(((accepted < offered) & (committed > accepted)).sum())
        full = int((accepted == offered).sum())
        tokens, taken = int(committed.sum()), int(accepted.sum())
        rows.append((len(accepted), tokens, taken, rejected, int(offered.sum()), full, tokens / len(accepted)))
    columns = ["rounds", "tokens", "accepted", "rejected", "offered", "full", "request_ratio"]
    table = pd.DataFrame(rows, columns=columns).assign(requests=1)
    table = table.assign(tested=table["accepted"] + table["rejected"])
    names = {"prompt": [text.prompt for text in texts], "repeat": [text.repeat for text in texts]}
    return pd.DataFrame(names).join(table).join(pd.DataFrame(caps).add_prefix("cap_"))


def _by_prompt(lines: pd.DataFrame) -> pd.DataFrame:
    return lines.drop(columns="repeat").groupby("prompt", sort=True).sum().astype(float).rename_axis(None)


def _round_sums(rounds: pd.DataFrame, gamma: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the sums of a table of rounds at one gamma, by prompt, and tokens and rounds of its texts."""
    rejected = rounds["rejected"].astype(int)
    lines = rounds[["prompt", "repeat", "accepted", "offered"]].assign(
        rounds=1,
        tokens=rounds["committed"],
        rejected=rejected,
        tested=rounds["accepted"] + rejected,
        full=rounds["accepted"] == rounds["offered"],
    )
    texts = lines.groupby(["prompt", "repeat"]).sum()
    texts = texts.assign(requests=1, request_ratio=texts["tokens"] / texts["rounds"])
    cap = np.minimum(rounds["offered"], rounds["tokens_left"] - 1)
    caps = pd.crosstab(rounds["prompt"], cap).reindex(columns=range(gamma + 1), fill_value=0).add_prefix("cap_")
    lines = texts[["tokens", "rounds"]].reset_index().assign(gamma=gamma)
    return texts.groupby("prompt", sort=True).sum().join(caps).astype(float), lines


def foreign_values(sums: Columns, gamma: int) -> dict[str, np.ndarray]:
    """Return what the account of acceptance says, from sums of the data (scalars) or of the replicates [B]."""
    alpha = np.clip(sums["alpha_numerator"] / sums["alpha_denominator"], 0, 1)
    known = np.where(np.isfinite(alpha), 1.0, np.nan)
    alpha = np.nan_to_num(alpha)
    omega = tokens_per_round(alpha, gamma) * known
    per_cap = [sums[f"cap_{cap}"] * tokens_per_round(alpha, cap) for cap in range(gamma + 1)]
    omega_bar = np.sum(per_cap, axis=0) / sums["rounds"] * known
    tau = sums["tokens"] / sums["rounds"]
    values = {
        "tokens_per_round": tau,
        "omega": omega,
        "error": omega / tau - 1,
        "offered": omega_bar / omega,
        "dependence": tau / omega_bar,
        "alpha": alpha * known,
        "alpha_mle": sums["accepted"] / sums["tested"],
        "accepted_per_offered": sums["accepted"] / sums["offered"],
        "full": sums["full"] / sums["rounds"],
        "requests_mean": sums["request_ratio"] / sums["requests"],
    }
    if "own_rounds" in sums:
        own, along = sums["tokens"] / sums["own_rounds"], sums["tokens"] / sums["along_rounds"]
        values |= {"texts": own / omega_bar, "along": along / own, "depth": tau / along}
    return values


@dataclass(frozen=True)
class ForeignAccount:
    """The account of acceptance at one gamma.

    Attributes:
        gap: the formula against what was measured; its factors offered and dependence lead from one to the other.
        values: all of `foreign_values`, resampled together by prompt.
    """

    gap: FormulaGap
    values: Mapping[str, Interval]

    @property
    def steps(self) -> dict[str, Interval]:
        """The factors from the formula on, in order; their product is the measured tokens per round."""
        parts = list(PARTS) if "depth" in self.values else ["dependence"]
        return {name: self.values[name] for name in ("omega", "offered", *parts)}


def foreign_account(sums: ForeignSums, gamma: int, replicates: int, seed: int) -> ForeignAccount:
    """Return the account at one gamma of `sums`.

    Raises:
        ValueError: no draft token was ever tested, so that there is no alpha.
    """
    table = sums.tables[gamma]
    if "alpha_numerator" not in table or not table["alpha_denominator"].sum() > 0:
        raise ValueError("no draft token was ever tested, so there is no alpha")
    values = bootstrap(table, lambda columns: foreign_values(columns, gamma), replicates, seed)
    gap = FormulaGap(
        gamma,
        values["alpha"].estimate,
        sums.alpha_of_text,
        values["omega"].estimate,
        values["tokens_per_round"],
        values["error"],
        {name: values[name] for name in ("offered", "dependence")},
    )
    return ForeignAccount(gap, values)
