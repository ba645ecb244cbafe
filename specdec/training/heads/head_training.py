"""Training of heads on a target's hidden states, with the target frozen or trained too.

Knows neither Hydra nor MLflow.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from specdec.config import FolderPart, validated
from specdec.errors import UsageError
from specdec.heads.checkpoint import load_heads, save_heads, state_offset
from specdec.targets.base import Target
from specdec.targets.causal import Causal
from specdec.training.heads.backbone import Backbone
from specdec.training.heads.head_accuracy import HeadAccuracy, TargetScore, score_heads
from specdec.training.heads.head_recipe import HeadTrainConfig, head_fingerprint
from specdec.training.heads.hidden_states import StateSource
from specdec.training.heads.sequences import Batch, Sequences
from specdec.training.heads.student import Student, build_optimizer, first_heads
from specdec.training.resumable import FinishedTraining
from specdec.training.schedules import rate_factor, warm_up
from specdec.training.sitting import prepare, sit
from specdec.training.state_training import StateTraining, load_target, opened_parts, per_position

HEADS_FILE = "heads.safetensors"
BACKBONE_FOLDER = "backbone"


class HeadTraining(StateTraining):
    """The training of one set of heads, to their file, the backbone beside it if it was trained, and a summary."""

    watched = "heldout/head_1.top1"
    file_name = HEADS_FILE
    recipe_keys = (
        "heads", "target", "data", "loss", "optimizer", "backbone", "lora", "init", "micro_batch", "bfloat16",
        "save_dtype",
    )  # fmt: skip

    student: Student

    def __init__(
        self,
        config: HeadTrainConfig,
        accelerator: Accelerator,
        target: Target,
        sequences: Sequences,
        source: StateSource,
    ) -> None:
        """
        Args:
            source: the states of the frozen target; not read if the backbone is trained.
        Raises:
            UsageError: heads to go on from that are of another kind or target; more processes than sequences; a target
                that cannot be trained.
        """
        super().__init__(config, config.heads.name, config.optimizer.grad_clip, accelerator, target, sequences, source)
        self.config = config
        name = validated(FolderPart, {"name": config.heads.name}, where="heads").name
        self.folder = Path(config.output_dir or f"models/heads/{name}")
        self.fingerprint = head_fingerprint(config, self.target_identity, sequences.fingerprint)
        heads = first_heads(config, target)
        backbone = None
        self.before = {}
        if config.backbone == "joint":
            if not isinstance(target, Causal):
                raise UsageError(f"Target {type(target).__name__} is no model that can be trained: use target=causal.")
            self.before = self.target_score(None)
            backbone = Backbone(target, state_offset(config.heads, target), config.lora, config.seed)
            heads.rebind(*backbone.ends())
        student = Student(heads, backbone, config)
        self.adopt(student, [build_optimizer(student, config.optimizer)])
        self.backbone_start = config.loss.backbone.first_step(self.steps)
        self.losses = ("train/heads_loss", "train/backbone_loss") if backbone is not None else ()
        self.scores = (*HeadAccuracy(config.heads.count).metrics(), *TargetScore().metrics())

    # --- checkpoints

    def state(self) -> dict[str, Any]:
        backbone = self.student.backbone
        return {
            "heads": self.student.heads.state_dict(),
            "backbone": {} if backbone is None else backbone.trained_state(),
            "optimizer": self.optimizers[0].state_dict(),
            "before": self.before,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.student.heads.load_state_dict(state["heads"])
        if self.student.backbone is not None:
            self.student.backbone.load_trained_state(state["backbone"])
        self.optimizers[0].load_state_dict(state["optimizer"])
        self.before = state["before"]

    # --- steps

    def scales(self, batch: Batch, step: int) -> list[float]:
        loss = self.config.loss
        heads, backbone = loss.heads.at(step, self.steps), loss.backbone.at(step, self.steps)
        weights = [backbone, *(heads * loss.decay**k for k in range(1, self.config.heads.count + 1))]
        return per_position(weights, batch)

    def part_losses(self, part: Batch, scales: list[float]) -> Sequence[Tensor]:
        frozen = self.student.backbone is None
        states, teacher = self.source.states(part) if frozen else (None, None)
        tokens, scored = part.on(self.accelerator.device)
        heads, backbone = self.wrapped(tokens, scored, scales, states, teacher)
        return (heads,) if frozen else (heads, backbone)

    def set_rates(self, step: int) -> None:
        rate = self.config.optimizer.rate
        factor = rate_factor(step, self.steps, rate)
        start = self.backbone_start or 0
        later = warm_up(max(step - start, 0), rate.warmup_steps) if start else 1.0
        for group in self.optimizers[0].param_groups:
            group["lr"] = group["base_lr"] * factor * (later if group["part"] == "backbone" else 1.0)

    # --- held-out text

    def score_parts(self, parts: Iterable[Batch]) -> dict[str, float]:
        accuracy, own = HeadAccuracy(self.config.heads.count), TargetScore()
        backbone = self.student.backbone
        for part in parts:
            tokens, scored = part.on(self.accelerator.device)
            states, logits = self.source.states(part) if backbone is None else backbone(tokens)
            accuracy.add(self.student.heads, states.float(), tokens, scored)
            if backbone is not None and logits is not None:
                own.add(logits, tokens, scored)
        return accuracy.metrics() | (self.reference() if backbone is None else own.metrics())

    # --- the end

    def finish(self) -> FinishedTraining:
        """Write heads (and backbone), score the written files on all held-out text, and write `summary.json`."""
        path = self.folder / HEADS_FILE
        summary = self.summary(self.student.heads)
        heads = self.student.heads.to(getattr(torch, self.config.save_dtype))
        if self.student.backbone is None:
            target = self.target
        else:
            folder = self.folder / BACKBONE_FOLDER
            self.student.backbone.save(folder)
            target = load_target(self.config.target | {"model": str(folder)}, self.accelerator.device)
            summary["target_before"] = {"sha256": self.target_identity} | self.before
        summary["target"] = target.hidden.identity
        save_heads(heads, path, target.hidden.identity, summary)
        metrics = score_heads(load_heads(path, target), target, self.heldout_parts(None))
        if self.before:
            metrics |= {name.replace("heldout/", "heldout/before."): value for name, value in self.before.items()}
        save_heads(heads, path, target.hidden.identity, summary | {"heldout": metrics})
        return self.finished(summary, metrics, self._sentence(metrics, path))

    def _sentence(self, metrics: dict[str, float], path: Path) -> str:
        tops = ", ".join(f"{metrics[f'heldout/head_{k + 1}.top1']:.3f}" for k in range(self.config.heads.count))
        own, loss = f"the target's own {metrics['heldout/target.top1']:.3f}", ""
        if self.before:
            name = "heldout/target.nats_per_token"
            loss = f"; the backbone's held-out loss was {self.before[name]:.4f} and is {metrics[name]:.4f} nats"
        return f"held-out top-1 accuracy of the heads {tops}, {own}{loss}; saved to {path}"


def open_training(config: HeadTrainConfig) -> HeadTraining:
    """Open target, sequences and states of a recipe, first in the main process and then in the others.

    Raises:
        UsageError: one of them is missing or does not fit.
    """
    frozen = config.backbone == "frozen"
    parts = opened_parts(
        config, lambda target: (state_offset(config.heads, target),), config.loss.teacher > 0, frozen=frozen
    )
    return HeadTraining(config, *parts)


def run(values: Mapping[str, Any]) -> FinishedTraining | None:
    """Train the heads of a recipe, or go on training them.

    Args:
        values: the configuration, plain data from YAML.
    Returns:
        None in all processes but the first.
    Raises:
        UsageError: bad values, files or targets; a checkpoint of another recipe.
        Interrupted: after a signal.
    """
    config = validated(HeadTrainConfig, values)
    prepare(config)
    return sit(open_training(config), config.tracking, asdict(config))
