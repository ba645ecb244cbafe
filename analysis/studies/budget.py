"""The numbers of study `equal_budget`: tokens per call and speedup of chain, rows and tree at each budget, with paired
differences. No torch.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from ..cost.block_seconds import BlockSeconds, repeats_of, stream_seconds
from .replayed import Sums, prompt_sums

SHAPES = ("chain", "rows", "tree")
KEYS = ["drafter", "shape", "budget"]
REFERENCE = "chain"


@dataclass(frozen=True)
class Budgets:
    """
    Attributes:
        rows: one row per drafter, shape, budget and stream, of the candidate that the other half chose; as the replay,
            with predicted `seconds` and `plain_s`.
        sums: over prompts.
        choices: as the study has it.
        calls: seconds of packed calls.
    """

    rows: pd.DataFrame
    sums: Sums
    choices: pd.DataFrame
    calls: BlockSeconds

    @cached_property
    def tokens(self) -> np.ndarray:
        """Tokens per call, [1 + B, C]."""
        return self.sums.values["tokens"] / self.sums.values["rounds"]

    @cached_property
    def speedup(self) -> np.ndarray:
        """[1 + B, C]."""
        return self.sums.values["plain_s"] / self.sums.values["seconds"]

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row per drafter, shape and budget: those, verified (mean draft nodes of a round), and for x in tokens and
        speedup: x, x_low, x_high, and the same of x_lead, the paired difference to the chain; price (what a draft
        node adds to a call, in plain calls: (t(1 + n) / t(1) - 1) / n) and break_even, the price at which calls alone
        would take away all that the accepted tokens give, (tokens - 1) / n.
        """
        cells = self.sums.cells.copy()
        cells["verified"] = self.sums.values["nodes"][0] / self.sums.values["rounds"][0]
        reference = self._reference()
        for name, values in (("tokens", self.tokens), ("speedup", self.speedup)):
            for column, each in ((name, values), (f"{name}_lead", values - values[:, reference])):
                cells[column] = each[0]
                cells[f"{column}_low"], cells[f"{column}_high"] = self.sums.interval(each)
        nodes = cells["verified"].to_numpy()
        context = np.full(len(cells), float(self.rows["context"].mean()))
        none = np.zeros(len(cells))
        longer = self.calls.call(none, nodes, none, context) / self.calls.call(none, none, none, context)
        with np.errstate(divide="ignore", invalid="ignore"):
            cells["price"] = (longer - 1) / nodes
            cells["break_even"] = (cells["tokens"] - 1) / nodes
        return cells

    def _reference(self) -> np.ndarray:
        """[C] number of the chain of the same drafter and budget."""
        cells = self.sums.cells
        number = {
            (row.drafter, row.budget): place for place, row in enumerate(cells.itertuples()) if row.shape == REFERENCE
        }
        return np.array([number[row.drafter, row.budget] for row in cells.itertuples()])

    def shapes(self) -> pd.DataFrame:
        """drafter, budget, shape -> the variants that were chosen, such as "4 x 4" or "4 x 4, 2 x 8" where the halves
        disagree.
        """
        joined = self.choices.groupby(KEYS)["variant"].agg(lambda names: ", ".join(dict.fromkeys(names)))
        return joined.rename("variant").reset_index()


def budgets(
    replay: pd.DataFrame,
    choices: pd.DataFrame,
    block_times: pd.DataFrame,
    host_times: pd.DataFrame,
    replicates: int,
    seed: int,
) -> Budgets:
    """From the study's tables: every text with the candidate that the prompts of the other half chose."""
    judged = choices.assign(half=1 - choices["half"])[[*KEYS, "half", "variant", "made_on"]]
    rows = replay.merge(judged, on=[*KEYS, "half", "variant", "made_on"], how="inner").assign(w=1)
    parts = []
    plain = host_times[host_times["shape"] == "plain"]
    for (drafter, shape), part in rows.groupby(["drafter", "shape"]):
        own = host_times[(host_times["drafter"] == drafter) & (host_times["shape"] == shape)]
        seconds, baseline = stream_seconds(part, repeats_of(block_times, pd.concat([plain, own])))
        parts.append(part.assign(seconds=seconds.mean(axis=0), plain_s=baseline.mean(axis=0)))
    timed = pd.concat(parts, ignore_index=True)
    sums = prompt_sums(timed, KEYS, ["tokens", "rounds", "nodes", "seconds", "plain_s"], replicates, seed)
    return Budgets(timed, sums, choices, repeats_of(block_times, plain)[0])
