"""The student, as the loop sees it: losses of a step, held-out score, export, optimizers and rates. Knows no model."""

import logging
import math
import shlex
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from specdec.config import FolderPart, validated
from specdec.errors import NumericsError, UsageError
from specdec.models.arithmetic import native_arithmetic
from specdec.text.writing import write_json
from specdec.training import recipes
from specdec.training.data.sequences import Sequences
from specdec.training.data_recipes import fingerprint

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FinishedTraining:
    """The results of a training."""

    folder: Path
    summary: dict[str, Any]  # the content of `summary.json`
    metrics: dict[str, float]  # the final figures for the tracking
    sentence: str  # the final figures for the user
    command: str  # the run that uses what was trained


class Student(ABC):
    """A model, or modules on a target, with the text that it learns from."""

    origin: ClassVar[str]  # the reasons why a checkpoint belongs to another training, for messages
    watched: ClassVar[str]  # the metric that the progress bar shows beside the loss
    rates: ClassVar[str] = "the learning rates of optimizer"  # the keys of the learning rates, for messages
    shorter: ClassVar[str] = "data.steps=N takes N steps"  # the key that makes a training shorter, for messages

    config: recipes.TrainingConfig
    pace: recipes.PaceConfig  # of measuring, logging and saving on the way
    name: str  # of the tracked run
    folder: Path  # the place of the training's files
    steps: int  # steps of the optimizer in all
    step_tokens: int  # tokens of a step
    fingerprint: str  # hash of all that must not change between two sittings
    losses: Sequence[str] = ()  # the metrics' names of the parts of the loss, where `part_losses` tells them apart
    scores: Sequence[str]  # the metrics of `score`, in the order of the history's columns
    module: nn.Module  # all that is trained, on `device`; a checkpoint keeps its weights that have a gradient
    optimizer: recipes.OptimizerConfig | recipes.HeadOptimizerConfig
    optimizers: Sequence[torch.optim.Optimizer]  # of these weights, by the keys of `optimizer`
    device: torch.device
    dtype: torch.dtype  # of forward and backward passes
    processes: int = 1  # that train together
    writes: bool = True  # files, as one of the processes does

    @classmethod
    @abstractmethod
    def open(cls, config: Any) -> "Student":
        """Open the model and the text that a recipe names; raises UsageError where one is missing or does not fit."""

    @abstractmethod
    def part_losses(self, step: int) -> Iterator[Tensor]:
        """Yield the losses [L] of each micro-batch of a step, in nats: one, or as many as `losses` has names. The sum
        over the step is the loss. The gradient of each is taken before the next is asked for.
        """

    @abstractmethod
    def score(self) -> dict[str, float]:
        """Return the held-out metrics that are watched on the way, by name."""

    @abstractmethod
    def export(self, effort: dict[str, Any]) -> FinishedTraining:
        """Write what was trained, score the file on all held-out text, write `summary.json` with the lines `effort`."""

    def arithmetic(self) -> AbstractContextManager[Any]:
        """Return the context of a forward pass: autocast to bfloat16, or nothing for float32."""
        return torch.autocast(self.device.type, self.dtype) if self.dtype == torch.bfloat16 else nullcontext()

    def summed(self, values: Tensor) -> Tensor:
        """Return the sum of a tensor over the processes that train together."""
        return values

    def set_rates(self, step: int) -> float:
        """Set the learning rates of a step, and return the one that the history shows."""
        assert isinstance(self.optimizer, recipes.OptimizerConfig)
        factor = schedule(step, self.steps, self.optimizer)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = group["base_lr"] * factor
        return self.optimizer.muon_lr * factor

    def take_step(self, step: int) -> dict[str, float]:
        """Take an optimizer step; return the columns `train_loss` (nats), `lr`, and those of `losses`. Raises
        NumericsError: the loss or its gradient is not finite; the weights are as they were.
        """
        sums = torch.zeros(max(len(self.losses), 1), dtype=torch.float64, device=self.device)
        for losses in self.part_losses(step):
            (losses.sum() * self.processes).backward()  # each has its part of a sum, and gradients are averaged
            sums += losses.detach().double()
        values = self.summed(sums).tolist()
        loss = sum(values)
        norm = torch.nn.utils.clip_grad_norm_(self.module.parameters(), self.optimizer.grad_clip)
        if not (torch.isfinite(norm) and math.isfinite(loss)):
            raise NumericsError(
                f"The training loss is {loss}, its gradient {float(norm)}, at step {step}: lower {self.rates}."
            )
        rate = self.set_rates(step)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return {"train_loss": loss, "lr": rate} | dict(zip(map(column, self.losses), values, strict=False))

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: the weights that are trained, and the states of the optimizers."""
        weights = {name: weight.detach() for name, weight in self._trained()}
        return {"weights": weights, "optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}

    @torch.no_grad()
    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what `state` returned."""
        for name, weight in self._trained():
            weight.copy_(state["weights"][name])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, weight) for name, weight in self.module.named_parameters() if weight.requires_grad)

    def finished(
        self, summary: dict[str, Any], metrics: dict[str, float], sentence: str, use: Sequence[str]
    ) -> FinishedTraining:
        """Write `summary.json`, and return the results; `use` are overrides of the run that uses what was trained."""
        write_json(self.folder / "summary.json", summary)
        command = shlex.join(["python", "-m", "specdec.run", *use])
        return FinishedTraining(self.folder, summary, metrics, sentence, command)


class SequenceStudent(Student):
    """A student of sequences in the tokens of a model that is there already."""

    kind: ClassVar[str]  # the group of the recipe's own keys; also the folder below `models` where its trainings lie

    config: recipes.SequenceTrainConfig

    def __init__(self, config: recipes.SequenceTrainConfig, sequences: Sequences, *identities: str | None) -> None:
        """Begin a training; `identities` are those of the model that is read or trained, for the fingerprint."""
        self.config, self.pace, self.sequences = config, config.monitor, sequences
        name = validated(FolderPart, {"name": getattr(config, self.kind).name}, where=self.kind).name
        self.name, self.folder = name, Path(config.output_dir or f"models/{self.kind}/{name}")
        self.steps, self.step_tokens = sequences.steps, sequences.batch_size * sequences.length
        # All that touches the weights, not logging or paths; of the data what decides what a step reads. The number of
        # steps also sets how rates and weights change.
        recipe = recipes.recipe_values(config)
        del recipe[self.kind]["name"]
        own = {key: value for key, value in recipe.items() if key not in ("data", "target", "save_dtype")}
        read = {key: recipe["data"][key] for key in ("batch", "sequences", "passes", "steps")}
        self.fingerprint = fingerprint(own | {"seed": config.seed}, read, *identities, sequences.fingerprint)

    def summary(self, effort: dict[str, Any], exported: nn.Module) -> dict[str, Any]:
        """Return the lines of `summary.json` that all of these trainings have."""
        return {
            "recipe": recipes.recipe_values(self.config),
            "seed": self.config.seed,
            "fingerprint": self.fingerprint,
            "data": self.sequences.manifest,
            "data_fingerprint": self.sequences.fingerprint,
            "parameters": sum(weight.numel() for weight in exported.parameters()),
            **effort,
        }


def column(metric: str) -> str:
    """Return the history's column of a metric: `heldout/nats_per_token` -> `heldout_nats_per_token`."""
    return metric.replace("/", "_").replace(".", "_")


def training_device(name: str, bfloat16: bool) -> tuple[torch.device, torch.dtype]:
    """Return a training's device, where `auto` takes the GPU if there is one, and the dtype of its passes: float32, or
    bfloat16 if asked for; where the device does not compute in it, one sentence says so. Raises UsageError: no GPU.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("Bad value device=cuda: no CUDA device is available; use device=cpu.")
    device = torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")
    arithmetic = native_arithmetic(torch.bfloat16 if bfloat16 else torch.float32, device)
    if arithmetic.sentence:
        logger.info("%s", arithmetic.sentence)
    return device, arithmetic.used


def build_optimizers(model: nn.Module, config: recipes.OptimizerConfig) -> list[torch.optim.Optimizer]:
    """Build Muon over the 2-D parameters of decoder layers and of what fuses features, and AdamW over all others."""
    matrices: dict[float, list[nn.Parameter]] = defaultdict(list)  # by factor on the learning rate
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        if parameter.ndim == 2 and any(part in f".{name}" for part in (".layers.", ".h.", ".fc.")):
            # Muon's own factor sqrt(max(1, out/in)) reads a shape as [out, in]; GPT-2's weights lie as [in, out], and
            # a factor sqrt(out/in) turns one into the other.
            factor = (parameter.shape[1] / parameter.shape[0]) ** 0.5 if ".h." in name else 1.0
            matrices[factor].append(parameter)
        else:
            others.append(parameter)
    muon = torch.optim.Muon(
        [{"params": group, "lr": config.muon_lr * factor} for factor, group in matrices.items()],
        lr=config.muon_lr,
        momentum=config.muon_momentum,
        weight_decay=config.weight_decay,
        adjust_lr_fn="original",
    )
    adamw = torch.optim.AdamW(
        others, lr=config.adam_lr, betas=(config.adam_beta1, config.adam_beta2), weight_decay=0.0, fused=True
    )
    for optimizer in (muon, adamw):
        for group in optimizer.param_groups:
            group["base_lr"] = group["lr"]
    return [muon, adamw]


def schedule(step: int, steps: int, config: recipes.OptimizerConfig) -> float:
    """Return the factor on every learning rate at step 0..steps-1: linear warm-up, flat, linear to zero."""
    warmup = max(config.warmup_share * steps, 1.0)
    decay = max(config.decay_share * steps, 1.0)
    return min(1.0, (step + 1) / warmup, (steps - step) / decay)


def warm_up(step: int, warmup_steps: int) -> float:
    """Return the factor on the learning rate after `step` steps of warming up."""
    return min(1.0, (step + 1) / (warmup_steps + 1))


def rate_factor(step: int, steps: int, config: recipes.RateConfig) -> float:
    """Return the factor on every learning rate at step 0..steps-1."""
    if step < config.warmup_steps:
        return warm_up(step, config.warmup_steps)
    if config.schedule == "cosine":
        rest = max(steps - config.warmup_steps, 1)
        return 0.5 * (1.0 + math.cos(math.pi * (step - config.warmup_steps) / rest))
    if config.schedule == "trapezoid":
        return min(1.0, (steps - step) / max(config.decay_share * steps, 1.0))
    return 1.0
