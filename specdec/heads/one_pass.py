"""Independent heads in one pass: each layer of all heads is one matrix product in place of one for each head.

On a CPU a product with one vector takes as long as its start-up: four small ones cost four times as much as one.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec.heads.network import Heads, MlpHead, ResidualLayer


class _Layer(NamedTuple):
    """One linear layer of all K heads: weights [K, in, out] and biases [K, 1, out]."""

    weight: Tensor
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Return [k, B, out] for inputs [k, B, in] of the first k heads."""
        return torch.baddbmm(self.bias[: len(x)], x, self.weight[: len(x)])


class ParallelHeads:
    """Heads that are not grounded, for drafting. Copies their residual layers, and none of their output layers."""

    def __init__(self, heads: Heads) -> None:
        self._heads = heads
        stacks = [head.blocks for head in heads.heads if isinstance(head, MlpHead)]
        self._blocks = [_stacked(list(blocks)) for blocks in zip(*stacks, strict=True)]

    def __call__(self, states: Tensor, count: int) -> Tensor:
        """Return the logits [count, B, V] of the first `count` heads after h_t of B sequences [B, D]; the other heads
        are not computed.
        """
        x = states.expand(count, -1, -1)
        for inner, outer in self._blocks:
            hidden = F.silu(inner(x))
            x = x + (hidden if outer is None else outer(hidden))
        if self._heads.config.output == "own":
            return torch.stack([self._heads.logits(k, x[k - 1]) for k in range(1, count + 1)])
        return self._heads.logits(1, x)


def _stacked(blocks: list[ResidualLayer]) -> tuple[_Layer, _Layer | None]:
    """Stack the same residual layer of every head."""
    outer = [block.outer for block in blocks if block.outer is not None]
    return _layer([block.inner for block in blocks]), _layer(outer) if outer else None


def _layer(layers: list[nn.Linear]) -> _Layer:
    weight = torch.stack([layer.weight.detach().T for layer in layers])
    return _Layer(weight, torch.stack([layer.bias.detach().unsqueeze(0) for layer in layers]))
