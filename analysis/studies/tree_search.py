"""The numbers of study `tree_search`: what a round of a tree is predicted to take, and what trees did when they were
decoded live. No torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from ..cost.block_seconds import BlockSeconds, repeats_of
from .replayed import Sums, prompt_sums

PLAIN, CHOSEN = "plain", "chosen"


@dataclass(frozen=True)
class RoundSeconds:
    """Seconds of a round by nodes n and levels D of a tree: t(1 + n) + draft + rest (THEORY 7).

    Attributes:
        calls: t, and accepting, committing and the rest as its `rest`.
        context: cached tokens.
        draft: seconds of the draft of a tree: a constant, for each level, for each node.
        chains: by gamma, seconds of the draft of a chain, which a model makes in a cheaper way.
    """

    calls: BlockSeconds
    context: float
    draft: tuple[float, float, float]
    chains: Mapping[int, float]

    def target(self, nodes: int) -> float:
        """All but the draft."""
        n, none = np.array([float(nodes)]), np.zeros(1)
        call = self.calls.call(none, n, none, np.array([self.context]))
        return float(call[0] + self.calls.rest(n)[0])

    def outside(self, nodes: int) -> float:
        """All but what the levels of a tree's draft take; of plain decoding at 0 nodes."""
        fixed, _, per_node = self.draft
        return self.target(nodes) + (fixed + per_node * nodes if nodes else 0.0)

    @property
    def level(self) -> float:
        """Seconds for each level of a tree's draft."""
        return self.draft[1]

    def tree(self, nodes: int, depth: int) -> float:
        return self.outside(nodes) + self.level * depth

    def chain(self, gamma: int) -> float:
        return self.target(gamma) + self.chains[gamma]


def round_seconds(
    block_times: pd.DataFrame, draft_times: pd.DataFrame, host_times: pd.DataFrame, context: float
) -> RoundSeconds:
    """From tables as the study has them; drafts of trees by least squares of relative errors, no term negative."""
    medians = draft_times.groupby(["shape", "nodes", "depth"])["seconds"].median()
    trees = medians.loc["tree"].reset_index()
    design = np.stack([np.ones(len(trees)), trees["depth"], trees["nodes"]], axis=1) / trees[["seconds"]].to_numpy()
    fixed, level, node = nnls(design, np.ones(len(trees)))[0]
    chains = medians.loc["chain"].groupby("depth").first().to_dict()
    # Drafts are accounted for above.
    calls = repeats_of(block_times, host_times.assign(draft_s=0.0))[0]
    return RoundSeconds(calls, context, (float(fixed), float(level), float(node)), chains)


@dataclass(frozen=True)
class TreeSearch:
    """
    Attributes:
        arms: as the study has it, in the order of `sums.cells`.
        sums: over prompts, by arm: tokens, rounds, nodes, seconds, and plain_tokens and plain_s of plain decoding.
    """

    arms: pd.DataFrame
    sums: Sums

    @cached_property
    def tokens(self) -> np.ndarray:
        """Tokens per round, [1 + B, C]."""
        return self.sums.values["tokens"] / self.sums.values["rounds"]

    @cached_property
    def speedup(self) -> np.ndarray:
        """Plain seconds per token over an arm's, [1 + B, C]."""
        values = self.sums.values
        return (values["plain_s"] / values["plain_tokens"]) / (values["seconds"] / values["tokens"])

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row per arm: `arms`, with predicted_tokens and predicted_speedup; verified (mean draft nodes of a round);
        and for x in tokens and speedup: x, x_low, x_high, and the same of x_lead, the paired difference to the chosen
        tree, or to plain decoding where that was chosen.
        """
        cells = self.arms.rename(columns={"tokens": "predicted_tokens", "seconds": "predicted_s"})
        plain_s = float(cells.loc[cells["shape"] == PLAIN, "predicted_s"].iloc[0])
        cells["predicted_speedup"] = cells["predicted_tokens"] * plain_s / cells["predicted_s"]
        cells["verified"] = self.sums.values["nodes"][0] / self.sums.values["rounds"][0]
        own = [self.reference]
        for name, values in (("tokens", self.tokens), ("speedup", self.speedup)):
            for column, each in ((name, values), (f"{name}_lead", values - values[:, own])):
                cells[column] = each[0]
                cells[f"{column}_low"], cells[f"{column}_high"] = self.sums.interval(each)
        return cells

    @property
    def reference(self) -> int:
        """The place of what was chosen."""
        shapes = self.arms["shape"].tolist()
        return shapes.index(CHOSEN if CHOSEN in shapes else PLAIN)


def tree_search(arms: pd.DataFrame, live: pd.DataFrame, replicates: int, seed: int) -> TreeSearch:
    """From the study's tables."""
    keys = ["repeat", "stream"]
    plain = live[live["arm"] == PLAIN].rename(columns={"tokens": "plain_tokens", "seconds": "plain_s"})
    table = live.merge(plain[[*keys, "plain_tokens", "plain_s"]], on=keys, how="inner")
    columns = ["tokens", "rounds", "nodes", "seconds", "plain_tokens", "plain_s"]
    sums = prompt_sums(table, ["arm"], columns, replicates, seed)
    return TreeSearch(arms.set_index("arm").loc[sums.cells["arm"]].reset_index(), sums)


def rank_accuracy(accuracy: pd.DataFrame, replicates: int, seed: int) -> pd.DataFrame:
    """One row per level and rank: level, rank, tested, hits, share, low, high (prompt bootstrap)."""
    sums = prompt_sums(accuracy, ["level", "rank"], ["tested", "hits"], replicates, seed)
    with np.errstate(invalid="ignore"):
        share = sums.values["hits"] / sums.values["tested"]
    low, high = sums.interval(share)
    counts = {name: sums.values[name][0].astype(int) for name in ("tested", "hits")}
    return sums.cells.assign(**counts, share=share[0], low=low, high=high)
