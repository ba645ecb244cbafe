"""Seconds of a round of any block, from those that were timed: the target's call, the draft, and the rest. From tables
of study `grid`; no torch.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class BlockSeconds:
    """What was timed in one repeat.

    Attributes:
        calls: [context x (k, w)] median seconds of a call; columns also carry the tokens evaluated.
        host: nodes, draft_s, overhead_s of some drafts, ascending; plain decoding has 0 nodes.
        evaluation: "packed" or "rows".
    """

    calls: pd.DataFrame
    host: pd.DataFrame
    evaluation: str

    def call(self, w: np.ndarray, nodes: np.ndarray, paths: np.ndarray, context: np.ndarray) -> np.ndarray:
        """Seconds of calls on drafts of so many nodes in so many rows of width w, means of many rounds.

        Packed, the shape hardly matters: t between two numbers of tokens evaluated is on a straight line. In rows each
        has a root and a cache of its own: the straight line is between two numbers of rows of the same width. Between
        contexts too; beyond the timed contexts the nearest counts. NaN beyond the largest block that was timed.
        """
        contexts = self.calls.index.to_numpy(dtype=float)
        at = np.stack([self._at(each, w, nodes, paths) for each in contexts])  # [contexts, N]
        place = np.clip(np.searchsorted(contexts, context) - 1, 0, max(0, len(contexts) - 2))
        after = np.minimum(place + 1, len(contexts) - 1)
        span = contexts[after] - contexts[place]
        share = np.where(span > 0, (context - contexts[place]) / np.where(span > 0, span, 1.0), 0.0).clip(0.0, 1.0)
        each = np.arange(len(context))
        return (1 - share) * at[place, each] + share * at[after, each]

    def _at(self, context: float, w: np.ndarray, nodes: np.ndarray, paths: np.ndarray) -> np.ndarray:
        timed = self.calls.loc[context].dropna()
        if self.evaluation == "packed":
            by_tokens = timed.groupby("rows_evaluated").median()
            return np.interp(1 + nodes, by_tokens.index, by_tokens.to_numpy(), right=np.nan)
        found = np.full(len(w), np.nan)
        plain = timed.xs(0, level="w").iloc[0]
        for width in np.unique(w):
            mine = w == width
            if width == 0:
                found[mine] = plain
                continue
            by_k = timed.xs(width, level="w").groupby("k").median()
            # A round without any row is a plain step.
            ks, seconds = [0, *by_k.index], [plain, *by_k]
            found[mine] = np.interp(paths[mine], ks, seconds, right=np.nan)
        return found

    def rest(self, nodes: np.ndarray) -> np.ndarray:
        """Seconds of drafting, accepting, committing and everything else, on a straight line between numbers of nodes;
        beyond the largest the last counts.
        """
        return np.interp(nodes, self.host["nodes"], self.host["draft_s"] + self.host["overhead_s"])


def repeats_of(block_times: pd.DataFrame, host_times: pd.DataFrame) -> list[BlockSeconds]:
    """One for each repeat whose blocks were timed."""
    timed = block_times.dropna(subset="seconds")
    made = []
    for repeat, calls in timed.groupby("repeat"):
        table = calls.pivot_table(
            index="context", columns=["k", "w", "rows_evaluated"], values="seconds", aggfunc="median"
        )
        host = host_times[host_times["repeat"] == repeat].groupby("nodes")[["draft_s", "overhead_s"]].mean()
        made.append(BlockSeconds(table, host.reset_index(), str(calls["evaluation"].iloc[0])))
    return made


def stream_seconds(replay: pd.DataFrame, repeats: list[BlockSeconds]) -> tuple[np.ndarray, np.ndarray]:
    """Predicted decode seconds of every row of `replay`, and of plain decoding of the same texts; [repeats, rows] each.

    replay: as study `grid` has it. A text's mean draft and mean context stand for those of its rounds.
    """
    values = {
        name: replay[name].to_numpy(dtype=float) for name in ("w", "tokens", "rounds", "nodes", "paths", "context")
    }
    nodes, paths = values["nodes"] / values["rounds"], values["paths"] / values["rounds"]
    none = np.zeros(len(replay))
    blocks, plain = [], []
    for each in repeats:
        call = each.call(values["w"], nodes, paths, values["context"])
        blocks.append(values["rounds"] * (call + each.rest(nodes)))
        step = each.call(none, none, none, values["context"])
        plain.append(values["tokens"] * (step + each.rest(none)))
    return np.stack(blocks), np.stack(plain)
