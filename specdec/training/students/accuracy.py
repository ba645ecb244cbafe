"""Accuracy on held-out text, of heads and of their target: how often the most likely tokens hold the right one."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec.targets.base import Target
from specdec.training.data.sequences import Batch
from specdec.training.students.head_loss import chunks, logits_of, positions

TOP = 5  # accuracies are of the 1, ..., TOP most likely tokens, if nothing else is asked for
HELDOUT = "heldout"  # prefix of the metrics


@torch.no_grad()
def ranks(features: Tensor, output: Tensor, targets: Tensor) -> Tensor:
    """Count the tokens that a head finds likelier than the right one, [N]; of equals the lower id comes first. Features
    are [N, D], the output layer is [V, D], and targets are [N].
    """
    found = [
        logit_ranks(logits_of(features[part], output.to(features.dtype)), targets[part])
        for part in chunks(len(features), len(output), features.device)
    ]
    return torch.cat(found) if found else targets


def logit_ranks(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the same count from logits [N, V]."""
    right = logits.gather(-1, targets.unsqueeze(-1))
    before = torch.arange(logits.shape[-1], device=logits.device) < targets.unsqueeze(-1)
    return ((logits > right) | ((logits == right) & before)).sum(-1)


class HeadAccuracy:
    """Counts how often the 1, ..., T most likely tokens of a head, or of a step of a drafter, hold the right one.

    A grounded head reads the true tokens before it, as if every earlier draft token had been right; so does a step.

    Attributes:
        kind: the word for one of them in the metrics' names.
        hits: [K, T] int64.
        conditional_hits: [K, T] the hits where all earlier heads had the right token on top, as in an accepted draft.
        seen, conditional_seen: [K] the positions counted.
    """

    def __init__(self, count: int, kind: str = "head", top: int = TOP) -> None:
        self.kind = kind
        self.hits, self.conditional_hits = torch.zeros(2, count, top, dtype=torch.long)
        self.seen, self.conditional_seen = torch.zeros(2, count, dtype=torch.long)

    @torch.no_grad()
    def add(self, judged: Iterable[tuple[Tensor, Tensor]], scored: Tensor, numbers: Tensor) -> None:
        """Count a batch.

        Args:
            judged: features [B, S, D] that predict the tokens k+1 places ahead, k = 1, 2, ..., with their output layer
                [W, D].
            scored: [B, S].
            numbers: [B, S] the line of each token in the output layers; -1 where it has none, which is never right.
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
