"""A whole model that is there already and goes on learning: what students of that kind share."""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from torch import nn

from specdec.errors import UsageError
from specdec.models.load import content_hash, load_model, load_tokenizer, model_path
from specdec.training.data.head_data import text_sequences
from specdec.training.data.sequences import Batch, Sequences
from specdec.training.recipes import AdaptationConfig
from specdec.training.student import SequenceStudent, build_optimizers, training_device, training_dtype
from specdec.training.students.model_student import export_model, folder_bytes


class AdaptedStudent(SequenceStudent):
    """A student of all weights of one model."""

    origin = "another recipe, seed, model or text"
    role: ClassVar[str]  # the pocket model that is meant by pocket, target or drafter
    loss_of: Callable[..., Any]  # the loss of a micro-batch, which a recipe may have compiled

    config: AdaptationConfig
    module: Any

    def __init__(self, config: AdaptationConfig, model: Any, tokenizer: Any, sequences: Sequences) -> None:
        self.tokenizer, self.original = tokenizer, model.name_or_path  # a folder or hub id
        self.device = training_device(config.device)
        self.dtype = training_dtype(config.bfloat16, self.device)
        identity = content_hash(self.original) or str(getattr(model.config, "_commit_hash", None))
        super().__init__(config, sequences, identity)
        self.module = model.to(self.device)
        self.optimizer, self.optimizers = config.optimizer, build_optimizers(self.module, config.optimizer)

    @classmethod
    def open(cls, config: Any) -> "AdaptedStudent":
        name, length = model_path(config.target.model, cls.role), config.data.sequence_length
        model = load_model(name, dtype=torch.float32, device=torch.device("cpu"), attention="auto", kind="causal")
        tokenizer = load_tokenizer(name)
        if tokenizer is None or not getattr(tokenizer, "is_fast", False):
            raise UsageError(
                f"Model target.model={config.target.model} has no fast tokenizer, and it is trained on text: give a "
                "folder with a tokenizer.json."
            )
        context = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        if context is not None and length > context:
            raise UsageError(
                f"Bad value data.sequence_length={length}: the context of target.model={config.target.model} has "
                f"{context} tokens."
            )
        # It stays in evaluation mode: dropout, where a model has any, would make a resumed training another one.
        sequences = text_sequences(config.data, tokenizer, config.seed)
        return cls(config, model.requires_grad_(True), tokenizer, sequences)

    def begin(self) -> None:
        if self.config.compile:
            self.loss_of = torch.compile(type(self).loss_of, dynamic=False)

    def score(self) -> dict[str, float]:
        """Score a part of the held-out text, in the arithmetic of training: a monitor."""
        return self.scored_by(self.module, self.sequences.heldout(self.config.monitor.heldout_batches))

    def exported(self) -> Any:
        """Write the model, and return what was written; from now on all is computed in float32."""
        self.dtype, self.loss_of = torch.float32, type(self).loss_of
        return export_model(self.module, self.tokenizer, self.folder / "model")

    def summary(self, effort: dict[str, Any], exported: nn.Module) -> dict[str, Any]:
        summary = super().summary(effort, exported) | {"bytes": folder_bytes(self.folder / "model")}
        del summary["recipe"]["data"]["folder"]  # a place on this machine
        return summary

    @abstractmethod
    def scored_by(self, model: Any, batches: Iterable[Batch]) -> dict[str, float]:
        """Score a model on held-out text."""
