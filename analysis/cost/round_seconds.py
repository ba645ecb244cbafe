"""Seconds of a round by the nodes and levels of a tree, from tables of study `tree_search`; no torch."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from .block_seconds import BlockSeconds, repeats_of


@dataclass(frozen=True)
class RoundSeconds:
    """Seconds of a round with n nodes in D levels: t(1 + n) + draft + rest (theory.md 7.2).

    Attributes:
        calls: t, and as its `rest` the time of accepting, committing and everything else.
        context: cached tokens.
        draft: seconds of the draft of a tree: a constant, for each level, for each node.
        chains: by gamma, seconds of the draft of a chain, which a model makes in a cheaper way.
    """

    calls: BlockSeconds
    context: float
    draft: tuple[float, float, float]
    chains: Mapping[int, float]

    def target(self, nodes: int) -> float:
        """Return all but the draft."""
        n, none = np.array([float(nodes)]), np.zeros(1)
        call = self.calls.call(none, n, none, np.array([self.context]))
        return float(call[0] + self.calls.rest(n)[0])

    def outside(self, nodes: int) -> float:
        """Return all but what the levels of a tree's draft take; with 0 nodes, the round of plain decoding."""
        fixed, _, per_node = self.draft
        return self.target(nodes) + (fixed + per_node * nodes if nodes else 0.0)

    @property
    def level(self) -> float:
        """Seconds for each level of a tree's draft."""
        return self.draft[1]

    def tree(self, nodes: int, depth: int) -> float:
        """Return the seconds of a round with a tree."""
        return self.outside(nodes) + self.level * depth

    def chain(self, gamma: int) -> float:
        """Return the seconds of a round with a chain."""
        return self.target(gamma) + self.chains[gamma]


def round_seconds(
    block_times: pd.DataFrame, draft_times: pd.DataFrame, host_times: pd.DataFrame, context: float
) -> RoundSeconds:
    """Fit the study's tables; drafts of trees by least squares of relative errors, no term negative."""
    medians = draft_times.groupby(["shape", "nodes", "depth"])["seconds"].median()
    trees = medians.loc["tree"].reset_index()
    design = np.stack([np.ones(len(trees)), trees["depth"], trees["nodes"]], axis=1) / trees[["seconds"]].to_numpy()
    fixed, level, node = nnls(design, np.ones(len(trees)))[0]
    chains = medians.loc["chain"].groupby("depth").first().to_dict()
    # Drafts are accounted for above.
    calls = repeats_of(block_times, host_times.assign(draft_s=0.0))[0]
    return RoundSeconds(calls, context, (float(fixed), float(level), float(node)), chains)
