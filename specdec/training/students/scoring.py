"""The held-out loss in nats per token and bits per byte. Windows do not overlap; end-of-text is not scored."""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from specdec.progress import stage


@dataclass(frozen=True)
class HeldOutLoss:
    """Sums over scored tokens; reported are the two ratios."""

    nats: float
    tokens: int
    bytes: int

    @property
    def nats_per_token(self) -> float:
        return self.nats / max(self.tokens, 1)

    @property
    def bits_per_byte(self) -> float:
        return self.nats / math.log(2) / max(self.bytes, 1)

    def __add__(self, other: "HeldOutLoss") -> "HeldOutLoss":
        return HeldOutLoss(self.nats + other.nats, self.tokens + other.tokens, self.bytes + other.bytes)


def token_losses(model: nn.Module, sequences: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of each next token in nats, [B, S] float32, for sequences [B, S + 1]."""
    logits = model(input_ids=sequences[:, :-1], use_cache=False).logits
    targets = sequences[:, 1:]
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)


@torch.inference_mode()
def heldout_loss(
    model: nn.Module, stream: np.ndarray, token_bytes: list[int], end_of_text: int, window: int, at_once: int = 4
) -> HeldOutLoss:
    """Score a stream of documents between end-of-text tokens.

    Args:
        token_bytes: UTF-8 bytes of each token of the vocabulary.
        window: the most tokens of a sequence.
        at_once: sequences of a forward pass.
    """
    device = next(model.parameters()).device
    sizes = torch.tensor(token_bytes, device=device)
    starts = range(0, len(stream) - 1, window)
    pieces = [torch.from_numpy(stream[s : s + window + 1].astype(np.int64)) for s in starts]
    full = [piece for piece in pieces if len(piece) == window + 1]
    batches = [torch.stack(full[i : i + at_once]) for i in range(0, len(full), at_once)]
    batches += [piece[None] for piece in pieces if len(piece) != window + 1]
    total = HeldOutLoss(0.0, 0, 0)
    with stage("scoring held-out text", total=len(batches), told=False) as under_way:
        for batch in batches:
            batch = batch.to(device)
            losses, targets = token_losses(model, batch), batch[:, 1:]
            scored = targets != end_of_text
            total += HeldOutLoss(
                float(losses[scored].double().sum()), int(scored.sum()), int(sizes[targets[scored]].sum())
            )
            under_way.advance()
    return total
