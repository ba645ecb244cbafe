"""The network of IBM's MLP speculators ("accelerators"): n stages, each of which reads the state of the one before and
one more token.
"""

from math import sqrt
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec.heads.draft_heads import DraftHeads

_EPSILON = 1e-6


class StagedSizes(NamedTuple):
    """The sizes of an MLP speculator.

    Attributes:
        stages: n, tokens that it drafts at most.
        inner: width of a state between stages, I.
        size, vocabulary: of the target, D and V.
        tied: all stages have one embedding, norm and output layer, and all but the first one projection.
        scaled: h_t is normalised first.
    """

    stages: int
    inner: int
    size: int
    vocabulary: int
    tied: bool
    scaled: bool


class StagedMlp(DraftHeads):
    """Stage i makes s = GELU(norm(P_i s + (w_e/w_s) e_i(x_{t+i}))), beginning with s = h_t; its head predicts
    x_{t+i+1}. The norm divides by the root of the mean square; w_s = 0.5^(0.5/n), w_e = sqrt((1 - w_s^2) I/2).

    The modules have the names of the published tensors.
    """

    grounded = True

    def __init__(self, sizes: StagedSizes) -> None:
        super().__init__()
        self.sizes, self.hidden_size, self.vocab_size = sizes, sizes.size, sizes.vocabulary
        stages, inner = sizes.stages, sizes.inner
        own = 1 if sizes.tied else stages
        self.emb = nn.ModuleList(nn.Embedding(sizes.vocabulary, inner) for _ in range(own))
        self.proj = nn.ModuleList(
            nn.Linear(inner if stage else sizes.size, inner, bias=False)
            for stage in range(min(stages, 2) if sizes.tied else stages)
        )
        self.ln = nn.ModuleList(_ScaledAndShifted(inner) for _ in range(own))
        self.head = nn.ModuleList(nn.Linear(inner, sizes.vocabulary, bias=False) for _ in range(own))
        state = 0.5 ** (0.5 / stages)
        self._token_weight = sqrt((1 - state**2) * inner / 2) / state

    def __len__(self) -> int:
        return self.sizes.stages

    def draft_features(self, k: int, state: Tensor, drafted: Tensor) -> Tensor:
        s = state.expand(len(drafted), -1)
        if self.sizes.scaled:
            s = _normalised(s) / sqrt(2)
        for stage, tokens in enumerate(drafted.unbind(1)):
            embedded = _of_stage(self.emb, stage)(tokens)
            s = _of_stage(self.proj, stage)(s) + self._token_weight * embedded
            s = F.gelu(_of_stage(self.ln, stage)(s))
        return s

    def logits(self, k: int, features: Tensor) -> Tensor:
        result: Tensor = _of_stage(self.head, k - 1)(features)
        return result

    @property
    def flops_per_token(self) -> float:
        """See `DraftHeads`: the stages before are computed again for every token."""
        stages, inner = self.sizes.stages, self.sizes.inner
        mixed = self.sizes.size * inner + inner * inner * (stages - 1) / 2
        return 2.0 * (mixed + self.vocab_size * inner)

    def describe(self) -> dict[str, Any]:
        return {"count": len(self), "grounded": True, **self.sizes._asdict()}


class _ScaledAndShifted(nn.Module):
    """The norm between stages: divided by the root of the mean square, then scaled and shifted."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * _normalised(x) + self.bias


def _normalised(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + _EPSILON)


def _of_stage(modules: nn.ModuleList, stage: int) -> nn.Module:
    """Return the module of a stage; stages that are tied share the last one."""
    return modules[min(stage, len(modules) - 1)]
