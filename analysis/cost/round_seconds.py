"""Seconds of a round (the target's call, the draft, and the rest) with any shape of draft, interpolated from the shapes
that studies timed; no torch.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from .call_cost import relative_fit


@dataclass(frozen=True)
class BlockSeconds:
    """The seconds that one repeat measured."""

    calls: pd.DataFrame  # median seconds of a call, by context (index) and by k, w and tokens evaluated (columns)
    host: pd.DataFrame  # draft_s and overhead_s by number of draft nodes, ascending; plain decoding has 0 nodes
    evaluation: str  # "packed" or "rows"

    def call(self, w: np.ndarray, nodes: np.ndarray, paths: np.ndarray, context: np.ndarray) -> np.ndarray:
        """Return the seconds of calls on drafts of given nodes, paths (rows) and width w; all are means over rounds.

        Seconds are interpolated linearly: between numbers of tokens evaluated where a draft is packed, since its shape
        hardly matters then; between numbers of rows of the same width where every row has its own root and cache; and
        between contexts. Beyond the timed contexts the nearest counts. NaN beyond the largest draft that was timed.
        """
        contexts = self.calls.index.to_numpy(dtype=float)
        at = np.stack([self._at(one, w, nodes, paths) for one in contexts])  # [contexts, N]
        place = np.clip(np.searchsorted(contexts, context) - 1, 0, max(0, len(contexts) - 2))
        after = np.minimum(place + 1, len(contexts) - 1)
        span = contexts[after] - contexts[place]
        share = np.where(span > 0, (context - contexts[place]) / np.where(span > 0, span, 1.0), 0.0).clip(0.0, 1.0)
        line = np.arange(len(context))
        return (1 - share) * at[place, line] + share * at[after, line]

    def _at(self, context: float, w: np.ndarray, nodes: np.ndarray, paths: np.ndarray) -> np.ndarray:
        """Return the seconds of calls at one of the timed contexts."""
        timed = self.calls.loc[context].dropna()
        if self.evaluation == "packed":
            by_tokens = timed.groupby("rows_evaluated").median()
            return np.interp(1 + nodes, by_tokens.index, by_tokens.to_numpy(), right=np.nan)
        seconds = np.full(len(w), np.nan)
        plain = timed.xs(0, level="w").iloc[0]
        for width in np.unique(w):
            mine = w == width
            if width == 0:
                seconds[mine] = plain
                continue
            by_k = timed.xs(width, level="w").groupby("k").median()
            # A round that offers no row is a plain step.
            seconds[mine] = np.interp(paths[mine], [0, *by_k.index], [plain, *by_k], right=np.nan)
        return seconds

    def rest(self, nodes: np.ndarray) -> np.ndarray:
        """Return the seconds of a round outside the call, interpolated linearly between numbers of draft nodes; beyond
        the largest that was timed, its seconds count.
        """
        return np.interp(nodes, self.host["nodes"], self.host["draft_s"] + self.host["overhead_s"])


def repeats_of(block_times: pd.DataFrame, host_times: pd.DataFrame) -> list[BlockSeconds]:
    """Return the seconds of each repeat whose calls were timed, from the tables of study `grid`."""
    timed = block_times.dropna(subset="seconds")
    made, columns = [], ["k", "w", "rows_evaluated"]
    for repeat, calls in timed.groupby("repeat"):
        table = calls.pivot_table(index="context", columns=columns, values="seconds", aggfunc="median")
        host = host_times[host_times["repeat"] == repeat].groupby("nodes")[["draft_s", "overhead_s"]].mean()
        made.append(BlockSeconds(table, host.reset_index(), str(calls["evaluation"].iloc[0])))
    return made


def stream_seconds(replay: pd.DataFrame, repeats: list[BlockSeconds]) -> tuple[np.ndarray, np.ndarray]:
    """Predict decode seconds of each line of `replay`, a table of study `grid`, and of plain decoding of the same text;
    [repeats, lines] each. A text's mean draft and mean context stand for those of its rounds.
    """
    columns = ("w", "tokens", "rounds", "nodes", "paths", "context")
    w, tokens, rounds, nodes, paths, context = (replay[name].to_numpy(dtype=float) for name in columns)
    nodes, paths, none = nodes / rounds, paths / rounds, np.zeros(len(replay))
    blocks, plain = [], []
    for one in repeats:
        blocks.append(rounds * (one.call(w, nodes, paths, context) + one.rest(nodes)))
        plain.append(tokens * (one.call(none, none, none, context) + one.rest(none)))
    return np.stack(blocks), np.stack(plain)


class RoundSeconds:
    """Seconds of a round with n nodes in D levels: t(1 + n) + draft + rest (theory.md 7.2).

    Attributes:
        fixed, level, node: seconds of the draft of a tree: a constant, for each level, for each node; by least squares
            of relative errors, no term negative.
        chains: by gamma, seconds of the draft of a chain, which a model makes in a cheaper way.
    """

    def __init__(
        self, block_times: pd.DataFrame, draft_times: pd.DataFrame, host_times: pd.DataFrame, context: float
    ) -> None:
        """Fit the study's tables. context: cached tokens."""
        medians = draft_times.groupby(["shape", "nodes", "depth"])["seconds"].median()
        trees = medians.loc["tree"].reset_index()
        columns = [np.ones(len(trees)), trees["depth"], trees["nodes"]]
        _, (self.fixed, self.level, self.node) = relative_fit(trees["seconds"].to_numpy(), columns)
        self.chains: dict[int, float] = medians.loc["chain"].groupby("depth").first().to_dict()
        # Drafts are accounted for above; what is left is accepting, committing and everything else.
        self._calls, self._context = repeats_of(block_times, host_times.assign(draft_s=0.0))[0], context

    def target(self, nodes: int) -> float:
        """Return all but the draft."""
        n, none = np.array([float(nodes)]), np.zeros(1)
        call = self._calls.call(none, n, none, np.array([self._context]))
        return float(call[0] + self._calls.rest(n)[0])

    def outside(self, nodes: int) -> float:
        """Return all but what the levels of a tree's draft take; with 0 nodes, the round of plain decoding."""
        return self.target(nodes) + (self.fixed + self.node * nodes if nodes else 0.0)

    def tree(self, nodes: int, depth: int) -> float:
        """Return the seconds of a round with a tree."""
        return self.outside(nodes) + self.level * depth

    def chain(self, gamma: int) -> float:
        """Return the seconds of a round with a chain."""
        return self.target(gamma) + self.chains[gamma]
