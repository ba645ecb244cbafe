"""The loss that heads are trained with, and their accuracy on held-out text, computed without ever holding all logits.

K heads over B sequences of S tokens would have K x B x S x V logits. Here those of a few hundred positions exist at a
time, and the gradient is taken from them while they do.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec.targets.base import Target
from specdec.training.data.sequences import Batch

TOP = 5  # accuracies are of the 1, ..., TOP most likely tokens, if nothing else is asked for
HELDOUT = "heldout"  # prefix of the metrics
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


class ChunkedCrossEntropy(torch.autograd.Function):
    """Sums (1 - s) CE(token) + s CE(teacher's law), in nats, over N positions, for their features [N, D] and the output
    layer [V, D]; s is the teacher's share, and its logits [B * S, V] are a constant.

    Computes both gradients in the forward pass, chunk by chunk: no logits are kept, and none are computed twice.
    """

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, output: Tensor, where: Positions, teacher: Tensor | None, teacher_share: float
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
            chosen = where.targets[part].unsqueeze(-1)
            total -= (1.0 - teacher_share) * law.gather(-1, chosen).sum(dtype=torch.float64)
            soft = None
            if teacher is not None and teacher_share > 0:
                soft = teacher[where.laws[part]].to(law.dtype).softmax(-1)
                total -= teacher_share * (soft * law).sum(dtype=torch.float64)
            gradient = law.exp_() if soft is None else law.exp_().sub_(soft, alpha=teacher_share)
            gradient.scatter_add_(-1, chosen, law.new_full(chosen.shape, teacher_share - 1.0))
            if features_grad is not None:
                features_grad[part] = (gradient.to(output.dtype) @ output).to(features.dtype)
            if output_grad is not None:
                output_grad += (gradient.to(output.dtype).T @ features[part]).to(output_grad.dtype)
        ctx.save_for_backward(features_grad, output_grad)
        return total.to(features.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return *(None if each is None else each * gradients[0] for each in ctx.saved_tensors), *(None,) * 3


def logits_of(features: Tensor, output: Tensor) -> Tensor:
    """Return the logits [N, V] of features [N, D], in float32 or finer, whatever dtype they are multiplied in."""
    logits = F.linear(features, output)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def chunks(count: int, width: int, device: torch.device) -> list[slice]:
    """Cut `count` positions with `width` logits each into pieces that fit into the memory of a device."""
    size = max(_CHUNK_LEAST, _CHUNK_BYTES.get(device.type, _OTHER_CHUNK_BYTES) // (4 * width))
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


@torch.no_grad()
def ranks(features: Tensor, output: Tensor, targets: Tensor) -> Tensor:
    """Count the tokens that a head finds likelier than the right one [N], as `logit_ranks` does, from features [N, D],
    the output layer [V, D] and targets [N].
    """
    found = [
        logit_ranks(logits_of(features[part], output.to(features.dtype)), targets[part])
        for part in chunks(len(features), len(output), features.device)
    ]
    return torch.cat(found) if found else targets


def logit_ranks(logits: Tensor, targets: Tensor) -> Tensor:
    """Count the tokens that logits [N, V] make likelier than the right one [N]; of equals the lower id comes first."""
    right = logits.gather(-1, targets.unsqueeze(-1))
    before = torch.arange(logits.shape[-1], device=logits.device) < targets.unsqueeze(-1)
    return ((logits > right) | ((logits == right) & before)).sum(-1)


class HeadAccuracy:
    """Counts how often the 1, ..., T most likely tokens of a head, or of a step of a drafter, hold the right one. A
    grounded head reads the true tokens before it, as if every earlier draft token had been right; so does a step.
    """

    def __init__(self, count: int, kind: str = "head", top: int = TOP) -> None:
        """Begin with no positions of K = `count` heads; `kind` is the word for one of them in the metrics' names."""
        self.kind = kind
        # [K, T]: all, and those where all earlier heads had the right token on top, as in an accepted draft.
        self.hits, self.conditional_hits = torch.zeros(2, count, top, dtype=torch.long)
        self.seen, self.conditional_seen = torch.zeros(2, count, dtype=torch.long)  # [K] the positions of each

    @torch.no_grad()
    def add(self, judged: Iterable[tuple[Tensor, Tensor]], scored: Tensor, numbers: Tensor) -> None:
        """Count a batch, of which tokens `scored` [B, S] are to be predicted, by features [B, S, D] that predict the
        tokens k+1 places ahead, k = 1, 2, ..., with their output layer [W, D]. The `numbers` [B, S] are the lines of
        the tokens in the output layers; -1 where one has none, which is never right.
        """
        right = torch.ones_like(scored)  # all heads so far were right
        for k, (features, output) in enumerate(judged, start=1):
            where = positions(numbers, scored, k)
            rank = ranks(where.select(features), output, where.targets.clamp_min(0))
            rank = torch.where(where.targets < 0, len(output), rank)
            self.count(k - 1, rank, where.select(right))
            here = torch.zeros_like(where.mask)
            here[where.mask] = rank == 0
            right = right[:, : here.shape[1]] & here

    def count(self, line: int, rank: Tensor, given: Tensor) -> None:
        """Count N positions on a line of the tables: how many tokens were likelier than the right one [N], and whether
        all earlier heads had theirs on top, [N] bool.
        """
        given = given.cpu()
        within = rank.unsqueeze(-1).cpu() <= torch.arange(self.hits.shape[1])  # [N, T]
        self.hits[line] += within.sum(0)
        self.seen[line] += len(rank)
        self.conditional_hits[line] += within[given].sum(0)
        self.conditional_seen[line] += int(given.sum())

    def metrics(self) -> dict[str, float]:
        """Return `heldout/head_1.top1`, ... and `heldout/head_1.top1_given_earlier`, ...; NaN without positions."""
        found = {}
        for head in range(len(self.seen)):
            for place in range(self.hits.shape[1]):
                name = f"{HELDOUT}/{self.kind}_{head + 1}.top{place + 1}"
                found[name] = share(self.hits[head, place], self.seen[head])
                found[name + "_given_earlier"] = share(self.conditional_hits[head, place], self.conditional_seen[head])
        return found


class TargetScore:
    """Counts the same for the target's own next token, and sums its loss."""

    def __init__(self) -> None:
        self.nats, self.tokens = 0.0, 0
        self.hits = torch.zeros(TOP, dtype=torch.long)

    @torch.no_grad()
    def add(self, logits: Tensor, tokens: Tensor, scored: Tensor) -> None:
        """Count a batch: logits [B, S, V], tokens and scored [B, S]."""
        where = positions(tokens, scored, 0)
        laws = logits.flatten(0, 1)
        for part in chunks(len(where.targets), logits.shape[-1], logits.device):
            chosen, targets = laws[where.laws[part]].float(), where.targets[part]
            self.nats += float(F.cross_entropy(chosen, targets, reduction="sum").double())
            rank = logit_ranks(chosen, targets)
            self.hits += (rank.unsqueeze(-1).cpu() <= torch.arange(TOP)).sum(0)
        self.tokens += len(where.targets)

    def metrics(self) -> dict[str, float]:
        """Return `heldout/target.nats_per_token`, `heldout/target.top1`, ..."""
        tops = {f"{HELDOUT}/target.top{place + 1}": share(self.hits[place], self.tokens) for place in range(TOP)}
        return {f"{HELDOUT}/target.nats_per_token": self.nats / max(self.tokens, 1)} | tops


@torch.no_grad()
def score_target(target: Target, parts: Iterable[Batch]) -> dict[str, float]:
    """Return the accuracy of a target's own next token on batches of text, in its own arithmetic."""
    own = TargetScore()
    for part in parts:
        tokens, scored = part.on(target.device)
        own.add(target.hidden.sequence(tokens, 0)[1], tokens, scored)
    return own.metrics()


def share(hits: Tensor, seen: Tensor | int) -> float:
    """Return the hits for each that was seen; NaN where none was."""
    return float(hits) / int(seen) if int(seen) else float("nan")
