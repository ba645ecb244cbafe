"""The account of imported rounds, as far as acceptance goes: from the textbook formula to measured tokens per round.

Everything rests on sums by prompt at each gamma, a few numbers per prompt: a trace of a million tokens has ten million
rounds over its gammas, and their table would not fit. Where lengths are by position the factor `dependence` of a run's
account falls into three: differences between texts, dependence along a text, and what a draft's depth does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from specdec.theory.capped_geometric import tokens_per_round

from ..arms import WORK
from ..intervals import Columns
from ..read.imported import Imported, PositionText, walked
from .gap_account import Account, gap_account, shared_alpha

SHOWN = 32  # gammas shown at most: all up to here, for sources whose drafts are longer


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
        rounds, gamma = source.rounds, source.gamma
        rejected = rounds["rejected"].astype(int)
        lines = rounds[["prompt", "repeat", "accepted", "offered"]].assign(
            rounds=1,
            tokens=rounds["committed"],
            rejected=rejected,
            tested=rounds["accepted"] + rejected,
            full=rounds["accepted"] == rounds["offered"],
        )
        sums = lines.groupby(WORK).sum()
        sums = sums.assign(requests=1, request_ratio=sums["tokens"] / sums["rounds"])
        cap = np.minimum(rounds["offered"], rounds["tokens_left"] - 1)
        caps = pd.crosstab(rounds["prompt"], cap).reindex(columns=range(gamma + 1), fill_value=0).add_prefix("cap_")
        table = sums.groupby("prompt", sort=True).sum().join(caps).astype(float)
        _, alpha = shared_alpha(rounds, None)
        written = sums[["tokens", "rounds"]].reset_index().assign(gamma=gamma)
        return ForeignSums({gamma: _with_alpha(table, alpha)}, written, alpha_of_text=False)
    texts = [text for text in source.by_position.texts if len(text.lengths)]
    alpha = pd.DataFrame(
        [(text.prompt, int((text.lengths > 1).sum()), len(text.lengths)) for text in texts],
        columns=["prompt", "numerator", "denominator"],
    )
    singles = []  # the texts with lengths as they would be if a draft's later tokens agreed where first ones do
    for text in texts:
        size = len(text.lengths)
        places = np.where(text.lengths > 1, size, np.arange(size))
        stops = np.minimum.accumulate(places[::-1])[::-1]  # the next position that disagrees
        singles.append(replace(text, lengths=(stops - np.arange(size) + 1).astype(np.int32)))
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


def _walk_texts(texts: list[PositionText], gamma: int) -> pd.DataFrame:
    """Walk every text at one gamma; return its prompt, its repeat and its sums, a line each."""
    rows, caps = [], np.zeros((len(texts), gamma + 1))
    for place, text in enumerate(texts):
        rounds = walked(text, gamma)
        accepted, offered, committed = map(np.asarray, (rounds.accepted, rounds.offered, rounds.committed))
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


def foreign_values(sums: Columns) -> dict[str, np.ndarray]:
    """Return what pages on imports show besides the account, from sums of the data (scalars) or of replicates [B]."""
    return {
        "alpha_mle": sums["accepted"] / sums["tested"],
        "accepted_per_offered": sums["accepted"] / sums["offered"],
        "full": sums["full"] / sums["rounds"],
        "requests_mean": sums["request_ratio"] / sums["requests"],
    }


def foreign_account(table: pd.DataFrame, gamma: int, of_text: bool, replicates: int, seed: int) -> Account:
    """Return the account of acceptance at one gamma, of some lines of `ForeignSums.tables`.

    Raises:
        ValueError: no draft token was ever tested, so that there is no alpha.
    """
    if "alpha_numerator" not in table or not table["alpha_denominator"].sum() > 0:
        raise ValueError("no draft token was ever tested, so there is no alpha")
    return gap_account(table, gamma, replicates=replicates, seed=seed, alpha_of_text=of_text)
