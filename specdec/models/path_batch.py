"""A token tree as a batch: each path from the root to a leaf in a row of its own (N-Grammys, 2411.03786)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from specdec.records import Tree, chain_tree


@dataclass(frozen=True)
class RowBatch:
    """Which of root and nodes stands where in [B, L]: B leaves, L the root and the deepest path.

    Rows begin with the root and are padded on the right, by the root again: every row is a causal chain, so nothing
    that counts sees the padding.

    Attributes:
        chain: the topology of a row.
        index: [B, L]; 0 is the root, i + 1 node i.
        places: [N+1] where root and each node stand in the flattened batch; the first row that holds it.
    """

    chain: Tree
    index: Tensor
    places: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def row_of(self, path: Sequence[int]) -> int:
        """A row that begins with the root and the nodes of `path`."""
        return int(self.places[path[-1] + 1]) // self.index.shape[1] if path else 0


@lru_cache(maxsize=64)
def row_batch(tree: Tree) -> RowBatch:
    """Rows in the order of `tree.leaves`; an empty tree is one row with the root alone."""
    width = tree.depth + 1
    places = [0] * (len(tree) + 1)
    seen = [True] + [False] * len(tree)
    index = []
    for row, leaf in enumerate(tree.leaves or (-1,)):
        path = tree.path(leaf)
        for column, node in enumerate(path, start=1):
            if not seen[node + 1]:
                seen[node + 1], places[node + 1] = True, row * width + column
        index.append([0, *(node + 1 for node in path), *[0] * (width - 1 - len(path))])
    return RowBatch(chain_tree(width - 1), torch.tensor(index), torch.tensor(places))
