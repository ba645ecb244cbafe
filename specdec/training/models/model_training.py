"""Training of a whole model: batches in, bfloat16 safetensors out. Resumable; built on what all trainings share."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from specdec.config import validated
from specdec.models.load import load_model
from specdec.text.writing import write_atomically
from specdec.training.models.batches import Batches
from specdec.training.models.networks import build_model, export_model
from specdec.training.models.recipe import TrainConfig, training_fingerprint
from specdec.training.models.scoring import HeldOutLoss, evenly_spaced_slice, heldout_loss, token_losses
from specdec.training.models.tokenized_corpus import TokenizedCorpus, load_corpus
from specdec.training.models.tokenizer import bytes_per_token
from specdec.training.resumable import FinishedTraining
from specdec.training.sitting import prepare, sit
from specdec.training.whole_model import WholeModelTraining

logger = logging.getLogger(__name__)


class ModelTraining(WholeModelTraining):
    """The training of a fresh model, to its export and its summary."""

    origin = "another recipe, seed or corpus"
    watched = "heldout/nats_per_token"
    rates = "recipe.optimizer"
    scores = ("heldout/nats_per_token", "heldout/bits_per_byte")

    def __init__(self, config: TrainConfig, corpus: TokenizedCorpus) -> None:
        recipe = config.recipe
        super().__init__(recipe.monitor, config.device, recipe.bfloat16)
        self.name, self.config, self.recipe, self.corpus = recipe.name, config, recipe, corpus
        self.folder = Path(config.output_dir or f"models/{recipe.name}")
        self.tokenizer = corpus.tokenizer
        self.end_of_text = int(corpus.tokenizer.eos_token_id)
        self.token_bytes = bytes_per_token(corpus.tokenizer)
        self.batches = Batches(corpus, recipe.data, config.seed)
        self.steps, self.step_tokens = self.batches.steps, recipe.data.batch_tokens
        model = build_model(recipe.model, len(corpus.tokenizer), self.end_of_text, config.seed)
        self.take(model, recipe.optimizer)
        self.fingerprint = training_fingerprint(config, corpus.manifest["sha256"])
        watched = next(iter(corpus.heldout.values()))
        self.heldout = evenly_spaced_slice(watched, recipe.monitor.heldout_tokens, recipe.monitor.heldout_window)
        self.loss_of: Callable[[nn.Module, torch.Tensor], torch.Tensor] = token_losses

    # --- steps

    def train(self, log: Callable[[dict[str, float], int], None], display: Callable[[dict[str, float]], None]) -> None:
        if self.recipe.compile:
            if self.device.type == "cpu":
                self.model.set_attn_implementation("eager")  # compiled, it beats the fused kernel there
            # Each stage's shape compiles once.
            self.loss_of = torch.compile(token_losses, dynamic=False)
        super().train(log, display)

    def take_step(self, step: int) -> dict[str, float]:
        sequences = torch.from_numpy(self.batches(step)).to(self.device)
        at_once = max(1, self.recipe.data.micro_batch_tokens // (sequences.shape[1] - 1))
        count = sequences.shape[0] * (sequences.shape[1] - 1)
        total = 0.0
        for micro in sequences.split(at_once):
            with self.arithmetic():
                loss = self.loss_of(self.model, micro).sum() / count
            loss.backward()
            total += loss.item()
        return self.update(step, total)

    def score(self) -> dict[str, float]:
        """Score the held-out slice in the arithmetic of training: a monitor, not the reported figure."""
        with self.arithmetic():
            window = self.recipe.monitor.heldout_window
            scored = heldout_loss(self.model, self.heldout, self.token_bytes, self.end_of_text, window)
        return dict(zip(self.scores, (scored.nats_per_token, scored.bits_per_byte), strict=True))

    # --- the end

    def finish(self) -> FinishedTraining:
        """Export the model, score the exported weights in float32 on all held-out text, and write `summary.json`."""
        folder = self.folder / "model"
        export_model(self.model, self.tokenizer, folder)
        exported = load_model(str(folder), dtype=torch.float32, device=self.device, attention="auto", kind="causal")
        window = self.recipe.model.context
        scores = {
            name: heldout_loss(exported, stream, self.token_bytes, self.end_of_text, window, at_once=1)
            for name, stream in self.corpus.heldout.items()
        }
        scores["all"] = sum(scores.values(), HeldOutLoss(0.0, 0, 0))
        summary = {
            "recipe": asdict(self.recipe),
            "seed": self.config.seed,
            "fingerprint": self.fingerprint,
            "corpus_sha256": self.corpus.manifest["sha256"],
            **self.made(folder),
            "heldout": {
                name: asdict(score) | {"nats_per_token": score.nats_per_token, "bits_per_byte": score.bits_per_byte}
                for name, score in scores.items()
            },
        }
        write_atomically(self.folder / "summary.json", json.dumps(summary, indent=1) + "\n")
        write_atomically(self.folder / "corpus.json", json.dumps(self.corpus.manifest, indent=1) + "\n")
        metrics = {
            f"heldout/final.{part}.{unit}": float(getattr(score, unit))
            for part, score in scores.items()
            for unit in ("nats_per_token", "bits_per_byte")
        }
        loss = scores["all"]
        sentence = (
            f"held-out {loss.nats_per_token:.4f} nats per token, {loss.bits_per_byte:.4f} bits per byte; "
            f"exported to {folder}"
        )
        return FinishedTraining(self.folder, summary, metrics, sentence)


def run(values: Mapping[str, Any]) -> FinishedTraining:
    """Train the whole model of a recipe, or go on training it; return paths and figures.

    Args:
        values: the configuration, plain data from YAML.
    Raises:
        UsageError: bad values, or a checkpoint of another recipe.
        Interrupted: after a signal.
    """
    config = validated(TrainConfig, values, source="the configuration")
    prepare(config)
    logger.info("Reading the corpus")
    corpus = load_corpus(config.recipe.corpus, config.recipe.model.context, Path(config.corpus_dir))
    params = {"recipe": asdict(config.recipe), "seed": config.seed}
    outcome = sit(ModelTraining(config, corpus), config.tracking, params)
    assert outcome is not None  # one process trains a whole model
    return outcome
