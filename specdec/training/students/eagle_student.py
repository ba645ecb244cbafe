"""A feature drafter of the EAGLE family on a frozen target's states. Its loss is a training-time test, in which the
network reads its own states as in a draft.

The rows of step 0 read the target's features; those of step j read what the network carried out of step j - 1, one
token later. Row i of step j is the one that drafts token j + 1 of a round that begins at row i, so it sees the rows of
step 0 up to i and, of the later steps, row i alone (EAGLE-3, 2503.01840, section 3.2).
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specdec.eagle.eagle_network import EagleNetwork
from specdec.errors import UsageError
from specdec.published.network_files import TRAINED_EAGLE
from specdec.text.document_store import batched
from specdec.training.data.sequences import Batch
from specdec.training.recipes import EagleLossConfig, EagleTrainConfig
from specdec.training.students.loss_and_accuracy import ChunkedCrossEntropy, HeadAccuracy, Positions, positions
from specdec.training.students.state_student import StateStudent, per_position

COUNTED_AT_ONCE = 256  # sequences


def unrolled(network: EagleNetwork, features: Tensor, tokens: Tensor, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the states [B, S, D] of the steps of a training-time test, on tokens [B, S] and the target's features
    [B, S, k * D_t]: as carried to the next step, and as the output layer reads them. Row i of step j predicts token
    i + j + 2. The last j + 1 rows of step j have no meaning: the text has no such tokens, and no other row sees them.
    """
    places = torch.arange(tokens.shape[1], device=tokens.device)
    own = torch.eye(len(places), dtype=torch.bool, device=tokens.device)
    state, past, seen = network.fuse(features), None, None
    for step in range(steps):
        following = tokens.roll(-1 - step, dims=1)
        state, _, past = network(following, state, places + step, past, seen, last=0)
        yield state, state if network.config.norm_output else network.normed(state)
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
        """Return the weighted cross entropy and the weighted regression of all steps, see `StateStudent.losses_module`;
        `scales` are those of the steps that are computed.

        With a reduced draft vocabulary the laws are those over its tokens, and a position counts only if the target's
        most likely token is among them (and the text's, as far as the loss is against that).
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
        for step, ((carried, normed), scale) in enumerate(steps):
            where = positions(tokens, scored, step + 1)
            if config.regression:
                actual = features.flatten(0, 1)[where.laws]
                apart = F.smooth_l1_loss(where.select(carried).to(actual.dtype), actual, reduction="sum")
                distance = distance + config.regression * scale / features.shape[-1] * apart
            if lines is not None:  # the positions that can be learned from, with lines of the output layer as targets
                targets = lines[where.targets]
                kept = targets >= 0 if config.teacher < 1 else torch.ones_like(targets, dtype=torch.bool)
                if drafted is not None:
                    kept &= drafted[where.laws]
                mask = where.mask.clone()
                mask[where.mask] = kept
                where = Positions(mask, targets[kept].clamp_min(0), where.laws[kept])
            loss = ChunkedCrossEntropy.apply(where.select(normed), output, where, laws, config.teacher)
            entropy = entropy + config.cross_entropy * scale * loss
        return entropy, distance


class EagleStudent(StateStudent):
    """One network, to its file and a summary."""

    kind, unit, noun = "eagle", "step", "EAGLE network"
    watched = "heldout/step_1.top1"
    files = TRAINED_EAGLE

    config: EagleTrainConfig

    @property
    def units(self) -> int:
        return self.config.loss.steps

    def untrained(self) -> EagleNetwork:
        config, hidden = self.config.eagle, self.target.hidden
        vocabulary, width = hidden.output_layer.shape
        if config.target_hidden != width:
            raise UsageError(
                f"Bad value eagle.target_hidden={config.target_hidden}: the target's states are {width} wide; set it "
                "to that."
            )
        drafted = None
        if config.draft_vocabulary is not None:
            if config.draft_vocabulary > vocabulary:
                raise UsageError(
                    f"Bad value eagle.draft_vocabulary={config.draft_vocabulary}: the target has {vocabulary} tokens; "
                    "lower it, or set it to null for all of them."
                )
            counts = np.zeros(vocabulary, dtype=np.int64)  # of scored tokens in the training text
            for numbers in batched(range(self.sequences.counts["train"]), COUNTED_AT_ONCE):
                batch = self.sequences.batch("train", np.array(numbers))
                counts += np.bincount(batch.tokens[batch.scored].numpy(), minlength=vocabulary)
            # The most frequent ones, in ascending order; of equals the lower.
            drafted = sorted(np.argsort(-counts, kind="stable")[: config.draft_vocabulary].tolist())
        return EagleNetwork.for_target(config, hidden, drafted)

    def losses_module(self) -> EagleLosses:
        if self.config.loss.regression:
            self.losses = ("train/cross_entropy", "train/regression")
        return EagleLosses(self.network, self.config.loss)

    def offsets(self) -> tuple[int, ...]:
        try:
            return self.config.eagle.offsets(self.target.hidden.layers)
        except ValueError as error:
            raise UsageError(f"Bad value eagle.boundaries={self.config.eagle.boundaries}: {error}.") from None

    def scales(self, batch: Batch, step: int) -> list[float]:
        loss = self.config.loss
        later = loss.later.at(step, self.steps)
        further = range(1, loss.steps if later else 1)
        # Step j predicts the token j + 2 places ahead: one more than the target and, by one each, those behind.
        return per_position([0.0, 1.0, *(later * loss.decay**j for j in further)], batch)[1:]

    @staticmethod
    def count(accuracy: HeadAccuracy, network: EagleNetwork, states: Tensor, tokens: Tensor, scored: Tensor) -> None:
        steps, output = unrolled(network, states, tokens, len(accuracy.seen)), network.output_layer
        accuracy.add(((normed, output) for _, normed in steps), scored, draft_lines(network)[tokens])
