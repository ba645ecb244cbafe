"""A feature drafter of the EAGLE family on a frozen target's states."""

import numpy as np
import torch
from torch import Tensor

from specdec.eagle.eagle_network import EagleNetwork
from specdec.errors import UsageError
from specdec.published.network_files import TRAINED_EAGLE
from specdec.targets.base import Target
from specdec.training.data.sequences import Batch, Sequences
from specdec.training.recipes import EagleTrainConfig
from specdec.training.students.accuracy import HeadAccuracy
from specdec.training.students.eagle_loss import EagleLosses, draft_lines, unrolled
from specdec.training.students.state_student import StateStudent, per_position

COUNTED_AT_ONCE = 256  # sequences


class EagleStudent(StateStudent):
    """One network, to its file and a summary."""

    kind, unit, noun = "eagle", "step", "EAGLE network"
    watched = "heldout/step_1.top1"
    files = TRAINED_EAGLE

    config: EagleTrainConfig

    @property
    def units(self) -> int:
        return self.config.loss.steps

    @property
    def drafter(self) -> str:
        return "eagle"

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
            drafted = frequent_tokens(self.sequences, vocabulary, config.draft_vocabulary)
        return EagleNetwork.for_target(config, hidden, drafted)

    def losses_module(self) -> EagleLosses:
        if self.config.loss.regression:
            self.losses = ("train/cross_entropy", "train/regression")
        return EagleLosses(self.network, self.config.loss)

    @staticmethod
    def offsets(config: EagleTrainConfig, target: Target) -> tuple[int, ...]:
        try:
            return config.eagle.offsets(target.hidden.layers)
        except ValueError as error:
            raise UsageError(f"Bad value eagle.boundaries={config.eagle.boundaries}: {error}.") from None

    def scales(self, batch: Batch, step: int) -> list[float]:
        loss = self.config.loss
        later = loss.later.at(step, self.steps)
        further = range(1, loss.steps if later else 1)
        # Step j predicts the token j + 2 places ahead: one more than the target and, by one each, those behind.
        return per_position([0.0, 1.0, *(later * loss.decay**j for j in further)], batch)[1:]

    @staticmethod
    def count(accuracy: HeadAccuracy, network: EagleNetwork, states: Tensor, tokens: Tensor, scored: Tensor) -> None:
        with torch.no_grad():
            steps, output = unrolled(network, states, tokens, len(accuracy.seen)), network.output_layer
            accuracy.add(((step.normed, output) for step in steps), tokens, scored, draft_lines(network)[tokens])


def frequent_tokens(sequences: Sequences, vocabulary: int, count: int) -> list[int]:
    """Return the `count` most frequent scored tokens of the training text, in ascending order; of equals the lower."""
    counts = np.zeros(vocabulary, dtype=np.int64)
    for first in range(0, sequences.counts["train"], COUNTED_AT_ONCE):
        numbers = np.arange(first, min(first + COUNTED_AT_ONCE, sequences.counts["train"]))
        batch = sequences.batch("train", numbers)
        counts += np.bincount(batch.tokens[batch.scored].numpy(), minlength=vocabulary)
    return sorted(np.argsort(-counts, kind="stable")[:count].tolist())
