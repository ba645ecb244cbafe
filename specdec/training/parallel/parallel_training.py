"""Training of a model to draft in parallel (PARD, 2504.18583, section 3): an ordinary decoder in, the same decoder out,
which has learned to predict from mask tokens. Knows neither Hydra nor MLflow.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specdec.config import validated
from specdec.errors import UsageError
from specdec.models.decoder import attention_windows
from specdec.models.load import content_hash, load_model
from specdec.models.masks import Mask
from specdec.text.writing import write_atomically
from specdec.training.heads.head_data import text_sequences
from specdec.training.heads.sequences import Batch, Sequences
from specdec.training.models.networks import export_model
from specdec.training.parallel.draft_accuracy import DraftAccuracy
from specdec.training.parallel.mask_rows import UNSCORED, MaskRows, mask_rows, on_device
from specdec.training.parallel.parallel_recipe import ParallelTrainConfig
from specdec.training.resumable import FinishedTraining
from specdec.training.sitting import prepare, sit
from specdec.training.whole_model import WholeModelTraining, opened_model
from specdec.training.whole_model_recipe import adaptation_fingerprint

MASK_KEY = "pard_token"  # of config.json, as the published checkpoints name it
_RECIPE = ("model", "parallel", "data", "optimizer", "micro_batch", "bfloat16")


def row_losses(model: Any, tokens: Tensor, mask: Mask, positions: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cross entropy [B, R] of each row's target in nats, 0 where it has none, and whether the most likely
    token is the target.
    """
    logits = model(input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=False).logits.float()
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none", ignore_index=UNSCORED)
    return losses.view_as(targets), logits.detach().argmax(-1) == targets


class ParallelTraining(WholeModelTraining):
    """The training of one model to draft in parallel, to its export and its summary."""

    origin = "another recipe, seed, model or text"
    watched = "heldout/token_2.top1"

    def __init__(self, config: ParallelTrainConfig, model: Any, tokenizer: Any, sequences: Sequences) -> None:
        """
        Args:
            model: see `opened_model`.
        Raises:
            UsageError: a mask token that the model does not have.
        """
        super().__init__(config.monitor, config.device, config.bfloat16)
        self.config, self.sequences, self.tokenizer = config, sequences, tokenizer
        self.name = config.parallel.name
        self.folder = Path(config.output_dir or f"models/parallel/{self.name}")
        self.steps, self.step_tokens = sequences.steps, sequences.batch_size * sequences.length
        masks = config.parallel.counts(sequences.length - config.parallel.ahead)
        self.step_inputs = sequences.batch_size * (sequences.length + sum(masks))  # with masks
        found = content_hash(model.name_or_path) or str(getattr(model.config, "_commit_hash", None))
        self.fingerprint = adaptation_fingerprint(config, "parallel", found, sequences.fingerprint)
        self.mask_token = take_mask_token(model, tokenizer, config.parallel.mask_token)
        self.take(model, config.optimizer)
        self.windows = attention_windows(model.config.get_text_config(), model.name_or_path)
        self.scores = tuple(DraftAccuracy(config.parallel.ahead).metrics())
        self.losses_of: Callable[..., tuple[Tensor, Tensor]] = row_losses

    # --- steps

    def train(self, log: Callable[[dict[str, float], int], None], display: Callable[[dict[str, float]], None]) -> None:
        if self.config.compile:
            self.losses_of = torch.compile(row_losses, dynamic=False)
        super().train(log, display)

    def take_step(self, step: int) -> dict[str, float]:
        rows = self.rows(self.sequences.train(step), step)
        scale = 1.0 / max(int((rows.targets != UNSCORED).sum()), 1)
        total = 0.0
        for part in self.parts(rows):
            with self.arithmetic():
                losses, _ = self.judged(self.model, part)
                loss = losses.sum() * scale
            loss.backward()
            total += loss.item()
        return self.update(step, total)

    def rows(self, batch: Batch, number: int) -> MaskRows:
        """Return the rows of a batch; which positions have masks depends on the seed and a number alone, so that a
        resumed training has the same.

        Raises:
            UsageError: the text holds the mask token.
        """
        if (batch.tokens == self.mask_token).any():
            raise UsageError(
                f"Bad value parallel.mask_token={self.mask_token}: the text holds this token; give one that no text "
                "holds, such as a reserved one, or null."
            )
        generator = torch.Generator().manual_seed(self.config.seed * 0x9E3779B1 + number)
        rows = mask_rows(batch.tokens, batch.scored, self.config.parallel, self.mask_token, generator)
        return on_device(rows, self.device)

    def parts(self, rows: MaskRows) -> Iterator[MaskRows]:
        """Yield micro-batches."""
        size = self.config.micro_batch
        for i in range(0, len(rows.tokens), size):
            tokens, starts, targets = (each[i : i + size] for each in (rows.tokens, rows.starts, rows.targets))
            yield MaskRows(tokens, starts, rows.levels, targets)

    def judged(self, model: Any, rows: MaskRows) -> tuple[Tensor, Tensor]:
        """Return `row_losses` of rows."""
        mask = rows.attention(self.windows, model.dtype)
        return self.losses_of(model, rows.tokens, mask, rows.positions, rows.targets)

    # --- held-out text

    def score(self) -> dict[str, float]:
        """Score a part of the held-out text, in the arithmetic of training: a monitor."""
        with self.arithmetic():
            return self.scored_by(self.model, islice(self.sequences.heldout(), self.config.monitor.heldout_batches))

    @torch.no_grad()
    def scored_by(self, model: Any, batches: Iterable[Batch]) -> dict[str, float]:
        """Score batches behind the same positions every time, of which each level has as many as in training."""
        accuracy = DraftAccuracy(self.config.parallel.ahead)
        for number, batch in enumerate(batches, start=1):
            for part in self.parts(self.rows(batch, -number)):
                nats, right = self.judged(model, part)
                accuracy.add(right, nats, part)
        return accuracy.metrics()

    # --- the end

    def finish(self) -> FinishedTraining:
        """Export the model, score the exported weights in float32 on all held-out text, and write `summary.json`."""
        folder = self.folder / "model"
        setattr(self.model.config, MASK_KEY, self.mask_token)
        self.model.config.spd_type = "pard"
        export_model(self.model, self.tokenizer, folder)
        exported = load_model(str(folder), dtype=torch.float32, device=self.device, attention="auto", kind="causal")
        self.losses_of = row_losses
        metrics = self.scored_by(exported, self.sequences.heldout())
        plain = asdict(self.config)
        del plain["data"]["folder"]  # a place on this machine
        summary: dict[str, Any] = {
            "recipe": {key: plain[key] for key in _RECIPE},
            "seed": self.config.seed,
            "fingerprint": self.fingerprint,
            "mask_token": self.mask_token,
            "data": self.sequences.manifest,
            "data_fingerprint": self.sequences.fingerprint,
            **self.made(folder),
            "inputs": self.progress.step * self.step_inputs,
            "heldout": {name: value for name, value in metrics.items() if not math.isnan(value)},
        }
        write_atomically(self.folder / "summary.json", json.dumps(summary, indent=1) + "\n")
        final = {name.replace("heldout/", "heldout/final.", 1): value for name, value in summary["heldout"].items()}
        tops = ", ".join(f"{metrics[f'heldout/token_{k + 1}.top1']:.3f}" for k in range(self.config.parallel.ahead))
        return FinishedTraining(
            self.folder, summary, final, f"held-out top-1 accuracy of the draft tokens {tops}; exported to {folder}"
        )


def take_mask_token(model: Any, tokenizer: Any, asked: int | None) -> int:
    """Return the mask token of a model, and prepare the model for it: a model that had none embeds it as the mean of
    all tokens, and its output layer gets that of their lines where it grows.

    Args:
        asked: the recipe's. None takes the one that the model was trained with before, or else the first one beyond the
            tokenizer's; a model without room gets one more.
    Raises:
        UsageError: the model has no such token.
    """
    embeddings = model.get_input_embeddings().weight
    size, known = len(embeddings), getattr(model.config, MASK_KEY, None)
    if asked is not None and asked >= size:
        raise UsageError(
            f"Bad value parallel.mask_token={asked}: the model has the tokens 0 to {size - 1}; give a reserved one of "
            "these, or null."
        )
    pieces = 1 + max(tokenizer.get_vocab().values())
    token: int = next(each for each in (asked, known, pieces) if each is not None)
    changed = [embeddings] if token != known else []
    if token >= size:
        model.resize_token_embeddings(token + 1, mean_resizing=False)
        changed = [model.get_input_embeddings().weight, model.get_output_embeddings().weight]
    with torch.no_grad():
        for weight in changed:  # one and the same where they are tied
            weight[token] = weight[: min(pieces, size)].mean(0)
    return token


def open_training(config: ParallelTrainConfig) -> ParallelTraining:
    """Open model and text of a recipe.

    Raises:
        UsageError: one of them is missing or does not fit.
    """
    model, tokenizer = opened_model(config.model, "drafter", config.data.sequence_length)
    return ParallelTraining(config, model, tokenizer, text_sequences(config.data, tokenizer, config.seed))


def run(values: Mapping[str, Any]) -> FinishedTraining:
    """Train the model of a recipe to draft in parallel, or go on training it.

    Args:
        values: the configuration, plain data from YAML.
    Raises:
        UsageError: bad values, files or models; a checkpoint of another recipe.
        Interrupted: after a signal.
    """
    config = validated(ParallelTrainConfig, values)
    prepare(config)
    outcome = sit(open_training(config), config.tracking, asdict(config))
    assert outcome is not None  # one process trains
    return outcome
