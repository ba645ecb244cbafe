"""The loss of a feature drafter: a training-time test, in which the network reads its own states as in a draft.

The rows of step 0 read the target's features; those of step j read what the network carried out of step j - 1, one
token later. Row i of step j is the one that drafts token j + 1 of a round that begins at row i, so it sees the rows of
step 0 up to i and, of the later steps, row i alone (EAGLE-3, 2503.01840, section 3.2).
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec.eagle.eagle_network import EagleNetwork
from specdec.training.recipes import EagleLossConfig
from specdec.training.students.head_loss import Positions, cross_entropy, positions


class UnrolledStep(NamedTuple):
    """The states [B, S, D] of one step: as carried to the next, and as the output layer reads them."""

    carried: Tensor
    normed: Tensor


def unrolled(network: EagleNetwork, features: Tensor, tokens: Tensor, steps: int) -> Iterator[UnrolledStep]:
    """Yield the steps of a training-time test; row i of step j predicts token i + j + 2.

    The last j + 1 rows of step j have no meaning: the text has no such tokens, and no other row sees them.

    Args:
        features: [B, S, k * D_t] of the target.
        tokens: [B, S].
    """
    places = torch.arange(tokens.shape[1], device=tokens.device)
    own = torch.eye(len(places), dtype=torch.bool, device=tokens.device)
    state, past, seen = network.fuse(features), None, None
    for step in range(steps):
        following = tokens.roll(-1 - step, dims=1)
        state, _, past = network(following, state, places + step, past, seen, last=0)
        yield UnrolledStep(state, state if network.config.norm_output else network.normed(state))
        seen = torch.cat([torch.ones_like(own).tril_() if seen is None else seen, own], 1)  # [S, (step + 2) * S]


def draft_lines(network: EagleNetwork) -> Tensor:
    """Return the line [V] of each of the target's tokens in the network's output layer; -1 for those not drafted."""
    ids = network.drafted_ids
    return ids.new_full((network.vocab_size,), -1).index_copy(0, ids, torch.arange(len(ids), device=ids.device))


class EagleLosses(nn.Module):
    """The network and its loss, as one module for processes that train together."""

    def __init__(self, network: EagleNetwork, config: EagleLossConfig) -> None:
        super().__init__()
        self.network, self.config = network, config

    def forward(
        self, tokens: Tensor, scored: Tensor, scales: Sequence[float], features: Tensor, teacher: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted cross entropy and the weighted regression of all steps.

        With a reduced draft vocabulary the laws are those over its tokens, and a position counts only if the target's
        most likely token is among them (and the text's, as far as the loss is against that).

        Args:
            tokens, scored: [B, S].
            scales: of the steps that are computed: the weight of each, divided by the number of positions that it is
                averaged over.
            features: [B, S, k * D_t] of the target.
            teacher: [B, S, V] the target's own logits, if the loss has a share against its law.
        """
        network, config = self.network, self.config
        laws = None if teacher is None else teacher.flatten(0, 1)
        lines = drafted = None
        if network.config.draft_vocabulary is not None:
            lines = draft_lines(network)
            drafted = None if laws is None else lines[laws.argmax(-1)] >= 0
            laws = None if laws is None else laws[:, network.drafted_ids]
        read = features + (torch.rand_like(features) - 0.5) * config.noise if config.noise else features
        output, entropy, distance = network.output_layer, features.new_zeros(()), features.new_zeros(())
        steps = zip(unrolled(network, read, tokens, len(scales)), scales, strict=True)
        for step, (states, scale) in enumerate(steps):
            where = positions(tokens, scored, step + 1)
            if config.regression:
                actual = features.flatten(0, 1)[where.laws]
                apart = F.smooth_l1_loss(where.select(states.carried).to(actual.dtype), actual, reduction="sum")
                distance = distance + config.regression * scale / features.shape[-1] * apart
            if lines is not None:
                where = _drafted(where, lines, drafted, config.teacher)
            loss = cross_entropy(where.select(states.normed), output, where.targets, laws, where.laws, config.teacher)
            entropy = entropy + config.cross_entropy * scale * loss
        return entropy, distance


def _drafted(where: Positions, lines: Tensor, drafted: Tensor | None, teacher: float) -> Positions:
    """Keep the positions that can be learned with a reduced vocabulary, with the lines of its output layer as targets.

    Args:
        lines: see `draft_lines`.
        drafted: [B * S] the positions where the target's most likely token can be drafted.
        teacher: share of the loss against the target's law.
    """
    targets = lines[where.targets]
    kept = targets >= 0 if teacher < 1 else torch.ones_like(targets, dtype=torch.bool)
    if drafted is not None:
        kept &= drafted[where.laws]
    mask = where.mask.clone()
    mask[where.mask] = kept
    return Positions(mask, targets[kept].clamp_min(0), where.laws[kept])
