"""A token tree as a batch: each path from the root to a leaf is a sequence of its own (N-Grammys, 2411.03786)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from specdec.records import Tree, chain_tree


@dataclass(frozen=True)
class PathBatch:
    """The place of the root and of every node in a batch [B, L]: B leaves, L the length of the longest path and the
    root.

    Sequences begin with the root and are padded on the right, with the root again. Every sequence is causal, so the
    padding changes nothing before it.

    Attributes:
        chain: topology of one sequence.
        index: [B, L]; 0 stands for the root, i + 1 for node i.
        places: [N+1] where the root and each node stand in the flattened batch, in the first sequence that holds them.
    """

    chain: Tree
    index: Tensor
    places: Tensor

    def __len__(self) -> int:
        return len(self.index)

    def sequence_of(self, path: Sequence[int]) -> int:
        """Return the number of a sequence that begins with the root and the nodes of `path`."""
        return int(self.places[path[-1] + 1]) // self.index.shape[1] if path else 0


@lru_cache(maxsize=64)
def path_batch(tree: Tree) -> PathBatch:
    """Return one sequence for each of `tree.leaves`, in their order; for an empty tree, the root alone."""
    width, index, places = tree.depth + 1, [], dict[int, int]()
    for sequence, leaf in enumerate(tree.leaves or (-1,)):
        read = [0, *(node + 1 for node in tree.path(leaf))]
        for column, token in enumerate(read):
            places.setdefault(token, sequence * width + column)
        index.append(read + [0] * (width - len(read)))
    first = torch.tensor([places[token] for token in range(len(tree) + 1)])
    return PathBatch(chain_tree(width - 1), torch.tensor(index), first)


@lru_cache(maxsize=64)
def root_batch(sequences: int) -> PathBatch:
    """Return `sequences` sequences of the root alone: rows of width 0, which no tree stands for."""
    return PathBatch(chain_tree(0), torch.zeros(sequences, 1, dtype=torch.long), torch.zeros(1, dtype=torch.long))
