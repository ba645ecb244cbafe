"""What heads are trained for and judged by: cross entropy and accuracy, without ever holding all their logits.

K heads over B sequences of S tokens would have K x B x S x V logits. Here those of a few hundred positions exist at a
time, and the gradient is taken from them while they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec.heads.model import Heads

TOP = 5  # accuracies are of the 1, ..., TOP most likely tokens
_CHUNK_BYTES = 1 << 26  # of logits that exist at a time


@dataclass(frozen=True)
class Positions:
    """Where a head is judged: the positions of a batch whose k-th token after the next is scored.

    Attributes:
        mask: [B, S - k - 1] of them, to be applied to the head's features.
        targets: [N] the tokens x_{t+k+1}.
        laws: [N] indices into the flattened [B * S] positions whose law those tokens were drawn from.
    """

    mask: Tensor
    targets: Tensor
    laws: Tensor

    def select(self, features: Tensor) -> Tensor:
        """[B, S, ...] -> [N, ...]."""
        return features[:, : self.mask.shape[1]][self.mask]


def positions(tokens: Tensor, scored: Tensor, k: int) -> Positions:
    """Where head k is judged on tokens [B, S], of which `scored` [B, S] count as prediction targets.

    k = 0 is the target itself, which predicts x_{t+1}.
    """
    mask = scored[:, k + 1 :]
    length = tokens.shape[1]
    rows, columns = mask.nonzero(as_tuple=True)
    return Positions(mask, tokens[:, k + 1 :][mask], rows * length + columns + k)


def cross_entropy(
    features: Tensor,
    output: Tensor,
    targets: Tensor,
    teacher: Tensor | None = None,
    laws: Tensor | None = None,
    teacher_share: float = 0.0,
) -> Tensor:
    """Sum over N positions of (1 - s) CE(token) + s CE(teacher's law), in nats.

    Args:
        features: [N, D].
        output: [V, D] from features to logits.
        targets: [N].
        teacher: [M, V] logits of the teacher, a constant.
        laws: [N] the row of `teacher` that belongs to each position.
        teacher_share: s.
    """
    result: Tensor = _ChunkedCrossEntropy.apply(features, output, targets, teacher, laws, teacher_share)
    return result


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Takes both gradients on the way forward, chunk by chunk: no logits survive, and none are computed twice."""

    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        output: Tensor,
        targets: Tensor,
        teacher: Tensor | None,
        laws: Tensor | None,
        teacher_share: float,
    ) -> Tensor:
        features_grad = torch.zeros_like(features) if ctx.needs_input_grad[0] else None
        precise = torch.promote_types(output.dtype, torch.float32)
        output_grad = torch.zeros_like(output, dtype=precise) if ctx.needs_input_grad[1] else None
        output = output.to(features.dtype)
        total = torch.zeros((), dtype=torch.float64, device=features.device)
        for part in _chunks(len(features), len(output)):
            logits = _logits(features[part], output)
            law = logits.log_softmax(-1)
            chosen = targets[part].unsqueeze(-1)
            total -= (1.0 - teacher_share) * law.gather(-1, chosen).sum(dtype=torch.float64)
            ones = law.new_full(chosen.shape, 1.0 - teacher_share)
            if teacher is not None and laws is not None and teacher_share > 0:
                soft = teacher[laws[part]].to(law.dtype).softmax(-1)
                total -= teacher_share * (soft * law).sum(dtype=torch.float64)
                gradient = law.exp_().sub_(soft, alpha=teacher_share)
            else:
                gradient = law.exp_()
            gradient.scatter_add_(-1, chosen, -ones)
            if features_grad is not None:
                features_grad[part] = (gradient.to(output.dtype) @ output).to(features.dtype)
            if output_grad is not None:
                output_grad += (gradient.to(output.dtype).T @ features[part]).to(output_grad.dtype)
        ctx.save_for_backward(features_grad, output_grad)
        return total.to(features.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        features_grad, output_grad = ctx.saved_tensors
        scale = gradients[0]
        return (
            None if features_grad is None else features_grad * scale,
            None if output_grad is None else output_grad * scale,
            *(None,) * 4,
        )


def heads_loss(
    heads: Heads,
    states: Tensor,
    tokens: Tensor,
    scored: Tensor,
    scales: Sequence[float],
    teacher: Tensor | None = None,
    teacher_share: float = 0.0,
) -> Tensor:
    """Sum over the heads of scale_k times the summed cross entropy of head k (Medusa 2401.10774, equation 1).

    Args:
        states: [B, S, D] of the target.
        tokens, scored: [B, S].
        scales: of heads 1, ..., K: the weight of each over the number of positions that it is averaged over.
        teacher: [B, S, V] the target's own logits, where the loss is to be against its law.
    """
    total = states.new_zeros(())
    laws = None if teacher is None else teacher.flatten(0, 1)
    for k, features in enumerate(heads.features(states, tokens), start=1):
        where = positions(tokens, scored, k)
        loss = cross_entropy(
            where.select(features), heads.output_layer(k), where.targets, laws, where.laws, teacher_share
        )
        total = total + scales[k - 1] * loss
    return total


@torch.no_grad()
def ranks(features: Tensor, output: Tensor, targets: Tensor) -> Tensor:
    """How many tokens each head finds likelier than the right one, [N]; of equals the lower id comes first.

    Args:
        features: [N, D].
        output: [V, D].
        targets: [N].
    """
    found = [
        logit_ranks(_logits(features[part], output.to(features.dtype)), targets[part])
        for part in _chunks(len(features), len(output))
    ]
    return torch.cat(found) if found else targets


def logit_ranks(logits: Tensor, targets: Tensor) -> Tensor:
    """`ranks` from logits [N, V]."""
    right = logits.gather(-1, targets.unsqueeze(-1))
    before = torch.arange(logits.shape[-1], device=logits.device) < targets.unsqueeze(-1)
    return ((logits > right) | ((logits == right) & before)).sum(-1)


class HeadAccuracy:
    """Counts, over held-out text, how often a head's 1, ..., TOP most likely tokens hold the right one.

    A grounded head is given the true tokens before it, as if every earlier draft token had been right.

    Attributes:
        hits: [K, TOP] int64.
        conditional_hits: [K, TOP] of them where all earlier heads had the right token on top: what a tree meets.
        seen, conditional_seen: [K] positions.
    """

    def __init__(self, count: int) -> None:
        self.hits = torch.zeros(count, TOP, dtype=torch.long)
        self.conditional_hits = torch.zeros(count, TOP, dtype=torch.long)
        self.seen = torch.zeros(count, dtype=torch.long)
        self.conditional_seen = torch.zeros(count, dtype=torch.long)

    @torch.no_grad()
    def add(self, heads: Heads, states: Tensor, tokens: Tensor, scored: Tensor) -> None:
        """Count a batch: states [B, S, D], tokens and scored [B, S]."""
        right = torch.ones(tokens.shape, dtype=torch.bool, device=tokens.device)  # on top, of all heads so far
        for k, features in enumerate(heads.features(states, tokens), start=1):
            where = positions(tokens, scored, k)
            rank = ranks(where.select(features), heads.output_layer(k), where.targets)
            before = where.select(right)
            self._count(k - 1, rank.cpu(), before.cpu())
            here = torch.zeros_like(where.mask)
            here[where.mask] = rank == 0
            right = right[:, : here.shape[1]] & here

    def _count(self, head: int, rank: Tensor, before: Tensor) -> None:
        places = torch.arange(TOP)
        within = rank.unsqueeze(-1) <= places  # [N, TOP]
        self.hits[head] += within.sum(0)
        self.seen[head] += len(rank)
        self.conditional_hits[head] += within[before].sum(0)
        self.conditional_seen[head] += int(before.sum())

    def metrics(self, prefix: str) -> dict[str, float]:
        """`heldout.head_1.top1`, ... and `heldout.head_2.top1_given_earlier`, ...; NaN where nothing was seen."""
        found = {}
        for head in range(len(self.seen)):
            for place in range(TOP):
                name = f"{prefix}.head_{head + 1}.top{place + 1}"
                found[name] = _share(self.hits[head, place], self.seen[head])
                found[name + "_given_earlier"] = _share(self.conditional_hits[head, place], self.conditional_seen[head])
        return found


class TargetScore:
    """The target's own next token on the same text: its loss, and how often its TOP most likely hold the right one."""

    def __init__(self) -> None:
        self.nats, self.tokens = 0.0, 0
        self.hits = torch.zeros(TOP, dtype=torch.long)

    @torch.no_grad()
    def add(self, logits: Tensor, tokens: Tensor, scored: Tensor) -> None:
        """Count a batch: logits [B, S, V], tokens and scored [B, S]."""
        where = positions(tokens, scored, 0)
        laws = logits.flatten(0, 1)
        for part in _chunks(len(where.targets), logits.shape[-1]):
            chosen, targets = laws[where.laws[part]].float(), where.targets[part]
            self.nats += float(F.cross_entropy(chosen, targets, reduction="sum").double())
            rank = logit_ranks(chosen, targets)
            self.hits += (rank.unsqueeze(-1).cpu() <= torch.arange(TOP)).sum(0)
        self.tokens += len(where.targets)

    def metrics(self, prefix: str) -> dict[str, float]:
        """`heldout.target.nats_per_token`, `heldout.target.top1`, ..."""
        tops = {f"{prefix}.target.top{place + 1}": _share(self.hits[place], self.tokens) for place in range(TOP)}
        return {f"{prefix}.target.nats_per_token": self.nats / max(self.tokens, 1)} | tops


def _share(hits: Tensor, seen: Tensor | int) -> float:
    return float(hits) / int(seen) if int(seen) else float("nan")


def _logits(features: Tensor, output: Tensor) -> Tensor:
    """In float32 at least, whatever they were multiplied in."""
    logits = F.linear(features, output)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _chunks(rows: int, width: int) -> list[slice]:
    size = max(1, _CHUNK_BYTES // (4 * width))
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]
