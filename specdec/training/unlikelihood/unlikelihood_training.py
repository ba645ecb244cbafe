"""Training of a model against the loops that it writes itself: its greedy text goes on from the beginnings of the
training text, and the tokens of loops in it are made unlikely, beside the plain loss on the text (sequence-level
unlikelihood training; Welleck et al., 1908.04319). Knows neither Hydra nor MLflow.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig

from specdec.config import validated
from specdec.models.decoder import end_tokens_of
from specdec.models.load import content_hash, load_model
from specdec.text.repetition import loop_marks, repeated_share
from specdec.text.writing import write_atomically
from specdec.training.heads.head_data import text_sequences
from specdec.training.heads.sequences import Batch, Sequences
from specdec.training.models.networks import export_model
from specdec.training.models.scoring import token_losses
from specdec.training.resumable import FinishedTraining
from specdec.training.sitting import prepare, sit
from specdec.training.unlikelihood.unlikelihood_recipe import UnlikelihoodTrainConfig
from specdec.training.whole_model import WholeModelTraining, opened_model
from specdec.training.whole_model_recipe import adaptation_fingerprint

_RECIPE = ("model", "unlikelihood", "data", "optimizer", "micro_batch", "bfloat16")
_SURE = 1e-6  # the least nats of a token that is made unlikely: a token of probability 1 would have an infinite loss


class UnlikelihoodTraining(WholeModelTraining):
    """The training of one model against its loops, to its export and its summary."""

    origin = "another recipe, seed, model or text"
    watched = "heldout/looping"
    losses = ("train/cross_entropy", "train/unlikelihood")
    scores = ("heldout/nats_per_token", "heldout/looping")

    def __init__(self, config: UnlikelihoodTrainConfig, model: Any, tokenizer: Any, sequences: Sequences) -> None:
        """
        Args:
            model: see `opened_model`.
        """
        super().__init__(config.monitor, config.device, config.bfloat16)
        self.config, self.sequences, self.tokenizer = config, sequences, tokenizer
        self.name = config.unlikelihood.name
        self.folder = Path(config.output_dir or f"models/unlikelihood/{self.name}")
        self.steps, self.step_tokens = sequences.steps, sequences.batch_size * sequences.length
        self.original = model.name_or_path
        found = content_hash(self.original) or str(getattr(model.config, "_commit_hash", None))
        self.fingerprint = adaptation_fingerprint(config, "unlikelihood", found, sequences.fingerprint)
        self.ends = sorted(end_tokens_of(model))
        self.take(model, config.optimizer)
        self.losses_of: Callable[[Any, Tensor], Tensor] = token_losses

    # --- steps

    def train(self, log: Callable[[dict[str, float], int], None], display: Callable[[dict[str, float]], None]) -> None:
        if self.config.compile:
            self.losses_of = torch.compile(token_losses, dynamic=False)
        super().train(log, display)

    def take_step(self, step: int) -> dict[str, float]:
        batch = self.sequences.train(step)
        tokens, scored = batch.on(self.device)
        cross_entropy = self.backward(tokens, scored, lambda nats: nats, 1.0)
        written, marks, _ = self.written(self.model, tokens)
        rows = marks.any(1)
        scale = self.config.unlikelihood.weight / (len(tokens) * self.new_tokens)  # it fades as the loops do
        unlikelihood = self.backward(written[rows], marks[rows], unlikely, scale * int(marks.sum()))
        taken = self.update(step, cross_entropy + unlikelihood)
        return {**taken, "train_cross_entropy": cross_entropy, "train_unlikelihood": unlikelihood}

    def backward(self, tokens: Tensor, chosen: Tensor, loss_of: Callable[[Tensor], Tensor], weight: float) -> float:
        """Gather the gradient of the mean loss of the chosen tokens, micro-batch by micro-batch; return its value.

        Args:
            tokens: [B, S].
            chosen: [B, S] bool; the first token of a sequence is predicted by nothing.
            loss_of: turns the cross entropy of tokens in nats into their loss.
            weight: of the mean.
        """
        size, total = self.config.micro_batch, 0.0
        count = int(chosen[:, 1:].sum())
        missing = -len(tokens) % size if count else 0  # whole micro-batches, because each shape compiles anew
        tokens = torch.cat([tokens, tokens[:1].expand(missing, -1)])
        chosen = torch.cat([chosen, torch.zeros_like(chosen[:1]).expand(missing, -1)])
        for part, which in zip(tokens.split(size), chosen.split(size), strict=True):
            if not which.any():
                continue
            with self.arithmetic():
                nats = self.losses_of(self.model, part)
            loss = (loss_of(nats) * which[:, 1:]).sum() * (weight / count)
            loss.backward()
            total += loss.item()
        return total

    @property
    def new_tokens(self) -> int:
        """The tokens that the model writes after the beginning of a sequence, at most."""
        return self.sequences.length - self.config.unlikelihood.prefix_tokens

    @torch.no_grad()
    def written(self, model: Any, tokens: Tensor) -> tuple[Tensor, Tensor, list[bool]]:
        """Let a model go on with the beginnings of sequences, greedily.

        Args:
            tokens: [B, S].
        Returns:
            What it wrote behind them [B, S], the tokens [B, S] bool that go on with a loop, and which texts loop.
        """
        config = self.config.unlikelihood
        beginnings = tokens[:, : config.prefix_tokens]
        how = GenerationConfig(
            do_sample=False,
            max_new_tokens=self.new_tokens,
            eos_token_id=self.ends or None,
            pad_token_id=self.ends[0] if self.ends else 0,
        )
        # Autocast would cast all weights again for every token.
        writer = model if self.dtype == torch.float32 else deepcopy(model).to(self.dtype)
        found = writer.generate(beginnings, attention_mask=torch.ones_like(beginnings), generation_config=how)
        written = torch.full_like(tokens, int(how.pad_token_id or 0))
        written[:, : found.shape[1]] = found
        marks, looping = np.zeros(written.shape, dtype=bool), []
        for row, text in enumerate(written[:, config.prefix_tokens :].tolist()):
            end = next((place for place, token in enumerate(text) if token in self.ends), len(text))
            period = config.repetition_period
            place = slice(config.prefix_tokens, config.prefix_tokens + end)
            marks[row, place] = loop_marks(text[:end], period, config.repetition_tokens)
            looping.append(repeated_share(text[:end], period) >= config.repetition_share)
        return written, torch.from_numpy(marks).to(self.device), looping

    # --- held-out text

    def score(self) -> dict[str, float]:
        """Score a part of the held-out text, in the arithmetic of training: a monitor."""
        return self.scored_by(self.model, islice(self.sequences.heldout(), self.config.monitor.heldout_batches))

    @torch.no_grad()
    def scored_by(self, model: Any, batches: Iterable[Batch]) -> dict[str, float]:
        """Return the cross entropy of held-out text, and the share of its beginnings that a model goes on with in a
        loop.
        """
        nats, count = 0.0, 0
        looping: list[bool] = []
        for batch in batches:
            tokens, scored = batch.on(self.device)
            for part, which in zip(
                tokens.split(self.config.micro_batch), scored.split(self.config.micro_batch), strict=True
            ):
                with self.arithmetic():
                    losses = token_losses(model, part)
                nats += float((losses * which[:, 1:]).sum())
                count += int(which[:, 1:].sum())
            looping += self.written(model, tokens)[2]
        return dict(zip(self.scores, (nats / max(count, 1), float(np.mean(looping))), strict=True))

    # --- the end

    def finish(self) -> FinishedTraining:
        """Export the model, score it and the original in float32 on all held-out text, and write `summary.json`."""
        folder = self.folder / "model"
        export_model(self.model, self.tokenizer, folder)
        self.dtype = torch.float32
        scores = {}
        for name, path in (("before", self.original), ("after", str(folder))):
            model = load_model(path, dtype=torch.float32, device=self.device, attention="auto", kind="causal")
            found = self.scored_by(model, self.sequences.heldout())
            scores[name] = {each.removeprefix("heldout/"): value for each, value in found.items()}
        plain = asdict(self.config)
        del plain["data"]["folder"]  # a place on this machine
        summary: dict[str, Any] = {
            "recipe": {key: plain[key] for key in _RECIPE},
            "seed": self.config.seed,
            "fingerprint": self.fingerprint,
            "data": self.sequences.manifest,
            "data_fingerprint": self.sequences.fingerprint,
            **self.made(folder),
            "heldout_texts": self.sequences.counts["heldout"],
            "heldout": scores,
        }
        write_atomically(self.folder / "summary.json", json.dumps(summary, indent=1) + "\n")
        before, after = scores["before"], scores["after"]
        metrics = {f"heldout/final.{name}": value for name, value in after.items()}
        metrics |= {f"heldout/before.{name}": value for name, value in before.items()}
        return FinishedTraining(
            self.folder,
            summary,
            metrics,
            f"of {self.sequences.counts['heldout']} held-out beginnings {after['looping']:.1%} end in a loop "
            f"({before['looping']:.1%} before), at {after['nats_per_token']:.3f} nats per token "
            f"({before['nats_per_token']:.3f}); exported to {folder}",
        )


def unlikely(nats: Tensor) -> Tensor:
    """Return the unlikelihood -log(1 - p) of tokens from their cross entropy -log p, both in nats."""
    return -torch.log(-torch.expm1(-nats.clamp(min=_SURE)))


def open_training(config: UnlikelihoodTrainConfig) -> UnlikelihoodTraining:
    """Open model and text of a recipe.

    Raises:
        UsageError: one of them is missing or does not fit.
    """
    model, tokenizer = opened_model(config.model, "target", config.data.sequence_length)
    return UnlikelihoodTraining(config, model, tokenizer, text_sequences(config.data, tokenizer, config.seed))


def run(values: Mapping[str, Any]) -> FinishedTraining:
    """Train the model of a recipe against its loops, or go on training it.

    Args:
        values: the configuration, plain data from YAML.
    Raises:
        UsageError: bad values, files or models; a checkpoint of another recipe.
        Interrupted: after a signal.
    """
    config = validated(UnlikelihoodTrainConfig, values)
    prepare(config)
    outcome = sit(open_training(config), config.tracking, asdict(config))
    assert outcome is not None  # one process trains
    return outcome
