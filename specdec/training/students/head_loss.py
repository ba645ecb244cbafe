"""The loss that heads are trained with: cross entropy, computed without ever holding all logits.

K heads over B sequences of S tokens would have K x B x S x V logits. Here those of a few hundred positions exist at a
time, and the gradient is taken from them while they do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec.heads.network import Heads

# The bytes of logits that exist at a time: on a CPU few enough for its cache, which halves the time of this loss.
_CHUNK_BYTES = {"cpu": 1 << 22}
_OTHER_CHUNK_BYTES = 1 << 26
_CHUNK_LEAST = 64  # positions, whatever the vocabulary: products of fewer lines take about as long


@dataclass(frozen=True)
class Positions:
    """The positions of a batch at which head k is judged: the k-th token after the next is scored."""

    mask: Tensor  # [B, S - k - 1] marks them, for the head's features
    targets: Tensor  # [N] the tokens x_{t+k+1}
    laws: Tensor  # [N] the position, in the flattened [B * S], whose law each of those tokens was drawn from

    def select(self, features: Tensor) -> Tensor:
        """Take the features of these positions: [B, S, ...] -> [N, ...]."""
        return features[:, : self.mask.shape[1]][self.mask]


def positions(tokens: Tensor, scored: Tensor, k: int) -> Positions:
    """Find the positions at which head k is judged, in tokens [B, S], of which those `scored` [B, S] are to be
    predicted; k = 0 is the target itself, which predicts x_{t+1}.
    """
    mask = scored[:, k + 1 :]
    length = tokens.shape[1]
    sequences, places = mask.nonzero(as_tuple=True)
    return Positions(mask, tokens[:, k + 1 :][mask], sequences * length + places + k)


def cross_entropy(
    features: Tensor,
    output: Tensor,
    targets: Tensor,
    teacher: Tensor | None = None,
    laws: Tensor | None = None,
    teacher_share: float = 0.0,
) -> Tensor:
    """Return the sum over N positions of (1 - s) CE(token) + s CE(teacher's law), in nats.

    Args:
        features: [N, D].
        output: [V, D] from features to logits.
        targets: [N].
        teacher: [M, V] logits of the teacher, a constant.
        laws: [N] the index into `teacher` of each position.
        teacher_share: s.
    """
    return _ChunkedCrossEntropy.apply(features, output, targets, teacher, laws, teacher_share)


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Computes both gradients in the forward pass, chunk by chunk: no logits are kept, and none are computed twice."""

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
        kind = features.device.type
        computed_in = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else features.dtype
        output = output.to(computed_in)  # autocast would convert it in every chunk
        total = torch.zeros((), dtype=torch.float64, device=features.device)
        for part in chunks(len(features), len(output), features.device):
            logits = logits_of(features[part], output)
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
        return *(None if each is None else each * gradients[0] for each in ctx.saved_tensors), *(None,) * 4


def heads_loss(
    heads: Heads,
    states: Tensor,
    tokens: Tensor,
    scored: Tensor,
    scales: Sequence[float],
    teacher: Tensor | None = None,
    teacher_share: float = 0.0,
) -> Tensor:
    """Return the sum over the heads of scale_k times the summed cross entropy of head k (Medusa 2401.10774, eq. 1).

    Args:
        states: [B, S, D] of the target.
        tokens, scored: [B, S].
        scales: of heads 1, ..., K: the weight of each, divided by the number of positions that it is averaged over.
        teacher: [B, S, V] the target's own logits, if the loss has a share against its law.
        teacher_share: that share.
    """
    total = states.new_zeros(())
    laws = None if teacher is None else teacher.flatten(0, 1)
    for k, features in enumerate(heads.features(states, tokens), start=1):
        where = positions(tokens, scored, k)
        chosen, output = where.select(features), heads.output_layer(k)
        loss = cross_entropy(chosen, output, where.targets, laws, where.laws, teacher_share)
        total = total + scales[k - 1] * loss
    return total


def logits_of(features: Tensor, output: Tensor) -> Tensor:
    """Return the logits [N, V] of features [N, D], in float32 or finer, whatever dtype they are multiplied in."""
    logits = F.linear(features, output)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def chunks(count: int, width: int, device: torch.device) -> list[slice]:
    """Cut `count` positions with `width` logits each into pieces that fit into the memory of a device."""
    size = max(_CHUNK_LEAST, _CHUNK_BYTES.get(device.type, _OTHER_CHUNK_BYTES) // (4 * width))
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
