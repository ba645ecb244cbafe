"""Training of a feature drafter on a frozen target's states. Knows neither Hydra nor MLflow."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from specdec.config import validated
from specdec.eagle.eagle_checkpoint import load_eagle, read_eagle, save_eagle
from specdec.eagle.eagle_network import EagleNetwork
from specdec.errors import UsageError
from specdec.targets.base import Target
from specdec.training.eagle.eagle_loss import draft_lines, eagle_loss, unrolled
from specdec.training.eagle.eagle_recipe import EagleLossConfig, EagleTrainConfig, eagle_fingerprint
from specdec.training.heads.head_accuracy import HeadAccuracy, TargetScore
from specdec.training.heads.hidden_states import StateSource
from specdec.training.heads.sequences import Batch, Sequences
from specdec.training.models.optimizer import build_optimizers, schedule, set_learning_rates
from specdec.training.resumable import FinishedTraining
from specdec.training.sitting import prepare, sit
from specdec.training.state_training import StateTraining, check_first, opened_parts, per_position

EAGLE_FILE = "eagle.safetensors"
COUNTED_AT_ONCE = 256  # sequences


class EagleStudent(nn.Module):
    """The network and its loss, as one module for processes that train together."""

    def __init__(self, network: EagleNetwork, loss: EagleLossConfig) -> None:
        super().__init__()
        self.network, self.loss = network, loss

    def forward(
        self, features: Tensor, tokens: Tensor, scored: Tensor, scales: list[float], teacher: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return the weighted cross entropy and regression; see `eagle_loss`."""
        return eagle_loss(self.network, self.loss, features, tokens, scored, scales, teacher)


class EagleTraining(StateTraining):
    """The training of one network, to its file and a summary."""

    watched = "heldout/step_1.top1"
    file_name = EAGLE_FILE
    recipe_keys = (
        "eagle", "target", "data", "loss", "optimizer", "init", "micro_batch", "bfloat16", "save_dtype",
    )  # fmt: skip

    student: EagleStudent

    def __init__(
        self,
        config: EagleTrainConfig,
        accelerator: Accelerator,
        target: Target,
        sequences: Sequences,
        source: StateSource,
    ) -> None:
        """
        Raises:
            UsageError: a network to go on from that is another or was trained on another target; more processes than
                sequences; a vocabulary to draft from that is larger than the target's.
        """
        super().__init__(config, config.eagle.name, config.optimizer.grad_clip, accelerator, target, sequences, source)
        self.config = config
        self.folder = Path(config.output_dir or f"models/eagle/{config.eagle.name}")
        self.fingerprint = eagle_fingerprint(config, self.target_identity, sequences.fingerprint)
        student = EagleStudent(first_network(config, target, sequences), config.loss)
        self.adopt(student, build_optimizers(student, config.optimizer))
        self.losses = ("train/cross_entropy", "train/regression") if config.loss.regression else ()
        self.scores = (*self._accuracy().metrics(), *TargetScore().metrics())

    def _accuracy(self) -> HeadAccuracy:
        return HeadAccuracy(self.config.loss.steps, "step")

    # --- checkpoints

    def state(self) -> dict[str, Any]:
        return {
            "network": self.student.network.state_dict(),
            "optimizers": [each.state_dict() for each in self.optimizers],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.student.network.load_state_dict(state["network"])
        for optimizer, kept in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(kept)

    # --- steps

    def scales(self, batch: Batch, step: int) -> list[float]:
        loss = self.config.loss
        later = loss.later.at(step, self.steps)
        further = range(1, loss.steps if later else 1)
        # Step j predicts the token j + 2 places ahead: one more than the target and, by one each, those behind.
        return per_position([0.0, 1.0, *(later * loss.decay**j for j in further)], batch)[1:]

    def set_rates(self, step: int) -> None:
        set_learning_rates(self.optimizers, schedule(step, self.steps, self.config.optimizer))

    def part_losses(self, part: Batch, scales: list[float]) -> Sequence[Tensor]:
        features, teacher = self.source.states(part)
        tokens, scored = part.on(self.accelerator.device)
        losses: tuple[Tensor, Tensor] = self.wrapped(features.float(), tokens, scored, scales, teacher)
        return losses if self.losses else losses[:1]

    # --- held-out text

    def score_parts(self, parts: Iterable[Batch]) -> dict[str, float]:
        accuracy = self._accuracy()
        for part in parts:
            features, _ = self.source.states(part)
            count_steps(accuracy, self.student.network, features.float(), *part.on(self.accelerator.device))
        return accuracy.metrics() | self.reference()

    # --- the end

    def finish(self) -> FinishedTraining:
        """Write the network, score the written file on all held-out text, and write `summary.json`."""
        path = self.folder / EAGLE_FILE
        summary = self.summary(self.student.network) | {"target": self.target_identity}
        network = self.student.network.to(getattr(torch, self.config.save_dtype))
        save_eagle(network, path, self.target_identity, summary)
        stored = load_eagle(path, self.target)
        accuracy = self._accuracy()
        for part in self.heldout_parts(None):
            tokens, scored = part.on(self.target.device)
            features, _ = self.target.hidden.sequence(tokens, *stored.config.offsets(self.target.hidden.layers))
            count_steps(accuracy, stored, features.clone(), tokens, scored)
        metrics = accuracy.metrics() | self.target_score(None)
        save_eagle(network, path, self.target_identity, summary | {"heldout": metrics})
        tops = ", ".join(f"{metrics[f'heldout/step_{step + 1}.top1']:.3f}" for step in range(self.config.loss.steps))
        sentence = (
            f"held-out top-1 accuracy of the steps {tops}, the target's own {metrics['heldout/target.top1']:.3f}; "
            f"saved to {path}"
        )
        return self.finished(summary, metrics, sentence)


@torch.no_grad()
def count_steps(
    accuracy: HeadAccuracy, network: EagleNetwork, features: Tensor, tokens: Tensor, scored: Tensor
) -> None:
    """Count how often each step of a network is right on a batch of text: tokens and scored [B, S]."""
    steps = unrolled(network, features, tokens, len(accuracy.seen))
    output = network.output_layer
    accuracy.count(((step.normed, output) for step in steps), tokens, scored, draft_lines(network)[tokens])


def first_network(config: EagleTrainConfig, target: Target, sequences: Sequences) -> EagleNetwork:
    """Return an untrained network in float32, or that of `init`.

    Raises:
        UsageError: the target has no such layers or too few tokens; the network of the file is another, or was trained
            on other weights.
    """
    wanted, hidden = config.eagle, target.hidden
    vocabulary, width = hidden.output_layer.shape
    if wanted.target_hidden != width:
        raise UsageError(
            f"Bad value eagle.target_hidden={wanted.target_hidden}: the target's states are {width} wide; set it to "
            "that."
        )
    kept = None
    if wanted.draft_vocabulary is not None:
        if wanted.draft_vocabulary > vocabulary:
            raise UsageError(
                f"Bad value eagle.draft_vocabulary={wanted.draft_vocabulary}: the target has {vocabulary} tokens; "
                "lower it, or set it to null for all of them."
            )
        kept = frequent_tokens(sequences, vocabulary, wanted.draft_vocabulary)
    with torch.random.fork_rng():
        torch.manual_seed(config.seed)
        network = EagleNetwork.for_target(wanted, hidden, kept).float()
    if config.init is not None:
        stored = read_eagle(config.init, key="init")
        check_first("EAGLE network", config.init, stored.target, asdict(stored.config), "eagle", asdict(wanted), target)
        network.load_state_dict(stored.weights)
    return network


def frequent_tokens(sequences: Sequences, vocabulary: int, count: int) -> list[int]:
    """Return the `count` most frequent scored tokens of the training text, in ascending order; of equals the lower."""
    found = np.zeros(vocabulary, dtype=np.int64)
    for first in range(0, sequences.counts["train"], COUNTED_AT_ONCE):
        numbers = np.arange(first, min(first + COUNTED_AT_ONCE, sequences.counts["train"]))
        batch = sequences.batch("train", numbers)
        found += np.bincount(batch.tokens[batch.scored].numpy(), minlength=vocabulary)
    return sorted(np.argsort(-found, kind="stable")[:count].tolist())


def open_training(config: EagleTrainConfig) -> EagleTraining:
    """Open target, sequences and states of a recipe, first in the main process and then in the others.

    Raises:
        UsageError: one of them is missing or does not fit.
    """

    def offsets(target: Target) -> tuple[int, ...]:
        try:
            return config.eagle.offsets(target.hidden.layers)
        except ValueError as error:
            raise UsageError(f"Bad value eagle.boundaries={config.eagle.boundaries}: {error}.") from None

    return EagleTraining(config, *opened_parts(config, offsets, config.loss.teacher > 0))


def run(values: Mapping[str, Any]) -> FinishedTraining | None:
    """Train the network of a recipe, or go on training it.

    Args:
        values: the configuration, plain data from YAML.
    Returns:
        None in all processes but the first.
    Raises:
        UsageError: bad values, files or targets; a checkpoint of another recipe.
        Interrupted: after a signal.
    """
    config = validated(EagleTrainConfig, values)
    prepare(config)
    return sit(open_training(config), config.tracking, asdict(config))
