"""The base of trainings that change all weights of a model: optimizers, arithmetic, checkpoints, one update."""

import math
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch

from specdec.errors import NumericsError, UsageError
from specdec.models.load import load_model, load_tokenizer, model_path
from specdec.training.models.optimizer import build_optimizers, schedule, set_learning_rates
from specdec.training.models.recipe import OptimizerConfig
from specdec.training.recipe_parts import PaceConfig
from specdec.training.resumable import ResumableTraining, training_device, training_dtype


class WholeModelTraining(ResumableTraining):
    """A training of all weights of one model.

    Class attributes:
        rates: the group of the optimizer's keys, for messages.
    """

    rates: ClassVar[str] = "optimizer"

    def __init__(self, pace: PaceConfig, device: str, bfloat16: bool) -> None:
        super().__init__(pace)
        self.device = training_device(device)
        self.dtype = training_dtype(bfloat16, self.device)

    def take(self, model: Any, optimizer: OptimizerConfig) -> None:
        """Take the model that is trained to the device, with its optimizers."""
        self.model, self.optimizer = model.to(self.device), optimizer
        self.optimizers = build_optimizers(self.model, optimizer)

    # --- checkpoints

    def state(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)

    # --- steps

    def arithmetic(self) -> AbstractContextManager[Any]:
        """Return the context of a forward pass: autocast to bfloat16, or nothing for float32."""
        return torch.autocast(self.device.type, self.dtype) if self.dtype == torch.bfloat16 else nullcontext()

    def update(self, step: int, loss: float) -> dict[str, float]:
        """Change the weights by the gradients that have been gathered; return `train_loss` and `lr`.

        Raises:
            NumericsError: the loss or its gradient is not finite; the weights are as they were.
        """
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.optimizer.grad_clip)
        if not (torch.isfinite(norm) and math.isfinite(loss)):
            raise NumericsError(
                f"The training loss is {loss}, its gradient {float(norm)}, at step {step}: lower the learning rates of "
                f"{self.rates}."
            )
        factor = schedule(step, self.steps, self.optimizer)
        set_learning_rates(self.optimizers, factor)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return {"train_loss": loss, "lr": self.optimizer.muon_lr * factor}

    # --- the end

    def made(self, folder: Path) -> dict[str, Any]:
        """Return the lines of `summary.json` that say what an exported model is, and what its training took."""
        return {
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "bytes": sum(file.stat().st_size for file in folder.iterdir()),
            **self.effort(self.device, self.dtype),
        }


def opened_model(model: str, role: str, sequence_length: int) -> tuple[Any, Any]:
    """Load the model that a training adapts, in float32, and its tokenizer.

    Args:
        model: a folder, a hub id, or pocket.
        role: the pocket model that is meant, target or drafter.
        sequence_length: tokens of the training's sequences.
    Raises:
        UsageError: the model cannot be loaded, has no fast tokenizer, or a context that is too short.
    """
    name = model_path(model, role)
    loaded = load_model(name, dtype=torch.float32, device=torch.device("cpu"), attention="auto", kind="causal")
    tokenizer = load_tokenizer(name)
    if tokenizer is None or not getattr(tokenizer, "is_fast", False):
        raise UsageError(
            f"Model model={model} has no fast tokenizer, and it is trained on text: give a folder with a "
            "tokenizer.json."
        )
    context = getattr(loaded.config.get_text_config(), "max_position_embeddings", None)
    if context is not None and sequence_length > context:
        raise UsageError(
            f"Bad value data.sequence_length={sequence_length}: the context of model={model} has {context} tokens."
        )
    # It stays in evaluation mode: dropout, where a model has any, would make a resumed training another one.
    return loaded.requires_grad_(True), tokenizer
